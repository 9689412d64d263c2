"""The kinds of networks. Each module registers its families in `benchmarks.atlas.problem.FAMILIES`."""

from benchmarks.atlas.families import dense, generative, images, relations, sequences

__all__ = ["dense", "generative", "images", "relations", "sequences"]
