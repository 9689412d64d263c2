"""Run files: what a watched training run leaves on disk, written without stopping it and read at any time."""

from leadline.runs.reading import Changes, Run
from leadline.runs.writing import Writer

__all__ = ["Changes", "Run", "Writer"]
