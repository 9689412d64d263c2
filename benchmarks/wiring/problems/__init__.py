"""The programs with planted bugs, by what they work on. Importing this package registers all of them."""

from benchmarks.wiring.problems import (
    continuous,
    discrete,
    images,
    language,
    pairs,
    sequences,
    signals,
    special,
    tables,
    texts,
)

__all__ = [
    "continuous",
    "discrete",
    "images",
    "language",
    "pairs",
    "sequences",
    "signals",
    "special",
    "tables",
    "texts",
]
