"""Phase diagrams: which of thousands of small networks learn the digits, over depth and one thing more.

plan        the three diagrams, and the cells of each
columns     one column of a diagram: a fleet of all depths, trained
scales      what theory says of a network's depth: its reach, as a multiple of which depth is counted
separation  how well "shallower than a multiple of the reach" tells what trained from what did not
measuring   a diagram through an executor; what it gives is a record of leadline.report.phases
"""

from leadline.lab.phases.measuring import phase
from leadline.lab.phases.plan import KINDS, Plan
from leadline.report.phases.record import Phase

__all__ = ["KINDS", "Phase", "Plan", "phase"]
