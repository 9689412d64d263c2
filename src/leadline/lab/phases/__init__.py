"""Phase diagrams: which of thousands of small networks learn the digits, over depth and one thing more.

plan        the three diagrams, and the cells of each
columns     one column of a diagram: a fleet of all depths, trained
scales      what theory says of a network's depth: its reach, as a multiple of which depth is counted
separation  how well "shallower than a multiple of the reach" tells what trained from what did not
record      the finished diagram
measuring   a diagram through an executor
showing     as a page and in a terminal
"""

from leadline.lab.phases.measuring import phase
from leadline.lab.phases.plan import KINDS, Plan
from leadline.lab.phases.record import Phase

__all__ = ["KINDS", "Phase", "Plan", "phase"]
