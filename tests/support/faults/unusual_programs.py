"""Small programs that train in plain PyTorch and are unusual in one respect, for tests of every public function."""

from __future__ import annotations

from tests.support.faults import unusual_graphs, unusual_modules, unusual_weights
from tests.support.faults.unusual_parts import PROGRAMS, build, mean_square, train

MODULES = (unusual_graphs, unusual_modules, unusual_weights)
"""Importing them registers their programs."""

__all__ = ["MODULES", "PROGRAMS", "build", "mean_square", "train"]
