"""Queries, keys and values packed into one matrix: where each of them lies."""

from __future__ import annotations

from dataclasses import dataclass

from leadline.records import Trace

ROWS = ("in_proj_weight", "qkv.weight", "Wqkv.weight")
"""Ends of names of matrices (3 out, in): of PyTorch, of leadline.nn and timm, of flash attention."""
COLUMNS = ("c_attn.weight",)
"""The same for (in, 3 out): GPT-2 writes y = x W."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Packing:
    """The parts `first` to `last` of `parts` equal ones along a dimension."""

    parts: int
    dim: int
    first: int
    last: int


QUERIES_AND_KEYS, VALUES = (0, 1), (2, 2)


def packing_of(trace: Trace, name: str, which: tuple[int, int]) -> Packing | None:
    """Where queries and keys, or values, lie in the matrix of that name; None if it is no packed one.

    Projections that interleave the three head by head (GPT-NeoX, Falcon) are none: their parts are not blocks.
    """
    shape = next((each.shape for each in trace.parameters if each.name == name), ())
    for ends, dim in ((ROWS, 0), (COLUMNS, 1)):
        if name.endswith(ends) and len(shape) == 2 and shape[dim] == 3 * shape[1 - dim]:
            return Packing(parts=3, dim=dim, first=which[0], last=which[1])
    return None
