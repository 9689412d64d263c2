"""The programs with planted bugs, by what they work on. Importing this package registers all of them."""

from benchmarks.wiring.problems import (
    continuous,
    discrete,
    estimates,
    images,
    language,
    pairs,
    scenes,
    sequences,
    signals,
    special,
    structures,
    tables,
    texts,
)

__all__ = [
    "continuous",
    "discrete",
    "estimates",
    "images",
    "language",
    "pairs",
    "scenes",
    "sequences",
    "signals",
    "special",
    "structures",
    "tables",
    "texts",
]
