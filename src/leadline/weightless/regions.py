"""Boxes: which part of a tensor a view of it is, and what remains of one box when another is cut out."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

Box = tuple[tuple[int, int], ...]
"""A half-open range in each dimension of the whole tensor."""


def whole(shape: Sequence[int]) -> Box:
    return tuple((0, size) for size in shape)


def volume(box: Box) -> int:
    return math.prod(stop - start for start, stop in box)


def meet(a: Box, b: Box) -> Box | None:
    """What both have in common; None if that is nothing."""
    common = tuple((max(p[0], q[0]), min(p[1], q[1])) for p, q in zip(a, b, strict=True))
    return common if all(start < stop for start, stop in common) else None


def without(box: Box, hole: Box) -> Iterator[Box]:
    """Disjoint boxes that cover `box` except `hole`, which lies inside it."""
    left = list(box)
    for dim, ((start, stop), (low, high)) in enumerate(zip(box, hole, strict=True)):
        if start < low:
            yield (*left[:dim], (start, low), *left[dim + 1 :])
        if high < stop:
            yield (*left[:dim], (high, stop), *left[dim + 1 :])
        left[dim] = (low, high)


def joined(a: Box, b: Box) -> Box | None:
    """The two as one box, if they are neighbours along one dimension and alike in all others."""
    apart = [dim for dim, (p, q) in enumerate(zip(a, b, strict=True)) if p != q]
    if len(apart) != 1 or a[apart[0]][1] != b[apart[0]][0]:
        return None
    dim = apart[0]
    return (*a[:dim], (a[dim][0], b[dim][1]), *a[dim + 1 :])


def box_of_view(
    shape: Sequence[int], strides: Sequence[int], size: Sequence[int], steps: Sequence[int], offset: int
) -> Box | None:
    """The box that a view (`size`, `steps`, `offset`) is of a tensor (`shape`, `strides`); None if it is not a box."""
    dims = sorted((dim for dim, n in enumerate(shape) if n > 1), key=lambda dim: -strides[dim])
    start = dict.fromkeys(range(len(shape)), 0)
    for dim in dims:
        start[dim], offset = divmod(offset, strides[dim])
    if offset or any(start[dim] >= shape[dim] for dim in dims):
        return None
    length = dict.fromkeys(range(len(shape)), 1)
    by_stride = {strides[dim]: dim for dim in dims}
    for count, step in _merged(size, steps):
        while count > 1:
            if step not in by_stride:
                return None
            dim = by_stride.pop(step)
            if start[dim] + count <= shape[dim]:
                length[dim], count = count, 1
            elif start[dim] == 0 and count % shape[dim] == 0:
                length[dim] = shape[dim]
                count, step = count // shape[dim], step * shape[dim]
            else:
                return None
    return tuple((start[dim], start[dim] + length[dim]) for dim in range(len(shape)))


def _merged(size: Sequence[int], steps: Sequence[int]) -> list[tuple[int, int]]:
    """Dimensions of a view, with those joined that lie behind one another in memory."""
    found: list[tuple[int, int]] = []
    for count, step in zip(size, steps, strict=True):
        if count == 1 or step == 0:
            continue
        if found and found[-1][1] == step * count:
            found[-1] = (found[-1][0] * count, step)
        else:
            found.append((count, step))
    return found
