"""What a trace could have left behind, as the sweep over the zoo measures it too."""

from benchmarks.footprint import Footprint, differences, footprint

__all__ = ["Footprint", "differences", "footprint"]
