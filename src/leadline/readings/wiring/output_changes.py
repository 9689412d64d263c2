"""How much the outputs of two passes differ, by sample or by position."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import torch
from torch import Tensor

# Heuristic: masks fill scores with -1e4, -1e9 or the smallest number; real scores differ by less among themselves.
MIN_FILL_OVER_SCORES = 100.0
# Heuristic: rounding of a softmax in half precision.
MAX_SUM_ERROR = 1e-2


def change_along(before: Tensor, after: Tensor, length: int, axis: int) -> Tensor | None:
    """Largest change at each index of the axis, relative to the largest magnitude; None if no axis has this length.

    Where samples and positions were flattened into one axis, they are taken apart again. An output may also have the
    axis in another place, as long as only one of its axes has this length. If both are possible, it is the one along
    which fewer indices changed: what is apart along one axis is not mixed.
    """
    if before.shape != after.shape or not before.dim():
        return None
    delta = (after.detach().double() - before.detach().double()).abs().nan_to_num()
    size = largest_magnitude(before) or 1.0
    changes = [rows.reshape(length, -1).amax(1) / size for rows in _rows_along(delta, length, axis)]
    return min(changes, key=lambda change: int((change > 0).sum()), default=None)


def _rows_along(delta: Tensor, length: int, axis: int) -> Iterator[Tensor]:
    """The changes with the axis first, for each place where the axis may be."""
    if delta.dim() > axis and delta.size(axis) == length:
        yield delta.movedim(axis, 0)
        return
    if axis == 0 and delta.size(0) % length == 0:
        yield delta.reshape(length, -1)
    if list(delta.shape).count(length) == 1:
        yield delta.movedim(list(delta.shape).index(length), 0)
    elif axis == 1 and delta.size(0) % length == 0:
        yield delta.reshape(-1, length, *delta.shape[1:]).movedim(1, 0)


def reversed_samples(output: Tensor, samples: int, positions: int | None, axis: int) -> Tensor | None:
    """The output of a batch in reverse order, in the order of the batch; None if it is not clear where samples are.

    Samples and positions may be flattened into one axis.
    """
    if list(output.shape).count(samples) == 1 and output.dim() > axis and output.size(axis) == samples:
        return output.flip(axis)
    if positions is not None and output.dim() and output.size(0) == samples * positions:
        shape = (samples, -1) if axis == 0 else (-1, samples)
        return output.reshape(*shape, *output.shape[1:]).flip(axis).flatten(0, 1)
    return None


def largest_magnitude(tensor: Tensor) -> float:
    """The largest magnitude, without what stands for minus infinity in masked scores."""
    sizes = tensor.detach().double().abs().flatten()
    sizes = sizes[sizes.isfinite()]
    largest = float(sizes.max()) if sizes.numel() else 0.0
    others = sizes[sizes < largest / 2]
    ordinary = float(others.max()) if others.numel() else largest
    return ordinary if 0 < MIN_FILL_OVER_SCORES * ordinary < largest else largest


def change_where(
    base: Sequence[Tensor], other: Sequence[Tensor], kept: Tensor, tolerance: float
) -> Tensor | None:
    """Relative change of the outputs at the positions that are not padded, of shape (samples, positions)."""
    for before, after in zip(base, other, strict=False):
        if before.dim() >= 2 and before.shape[:2] == kept.shape:
            delta = (after.detach().double() - before.detach().double()).abs().nan_to_num()
            delta = delta.reshape(*kept.shape, -1).amax(-1)
            moved = delta / (largest_magnitude(before) or 1.0)
            return torch.where(kept & (moved > tolerance), moved, torch.zeros_like(moved))
    return None


def is_comparison(
    pairs: Sequence[tuple[Tensor, Tensor]], samples: int, redrawn: Collection[int], tolerance: float
) -> bool:
    """Whether every output that changed has a row and a column for each sample, and no pair of others changed.

    Pairs may share what sums to one: a softmax over the samples that are compared.
    """
    kept = torch.tensor([index for index in range(samples) if index not in redrawn])
    for before, after in pairs:
        change = change_along(before, after, samples, 0)
        if change is None or not bool((change[kept] > tolerance).any()):
            continue
        axes = [axis for axis, size in enumerate(before.shape) if size == samples][:2]
        if len(axes) < 2:
            return False
        if any(_sums_to_one(before, axis) for axis in axes):
            continue
        delta = (after.double() - before.double()).abs().nan_to_num().movedim(axes, (0, 1))
        both_kept = delta.index_select(0, kept.to(delta.device)).index_select(1, kept.to(delta.device))
        if float(both_kept.max()) > tolerance * (largest_magnitude(before) or 1.0):
            return False
    return True


def _sums_to_one(output: Tensor, axis: int) -> bool:
    sums = output.double().sum(axis)
    return bool((output >= 0).all()) and torch.allclose(sums, torch.ones_like(sums), atol=MAX_SUM_ERROR)


def noise_between(base: Sequence[Tensor], repeated: Sequence[Tensor]) -> float:
    """Largest relative change of any output when the same pass is repeated."""
    changes = [
        change_along(before, after, before.size(0), 0)
        for before, after in zip(base, repeated, strict=False)
        if before.dim()
    ]
    return max(
        (float(change.max()) for change in changes if change is not None and change.numel()), default=0.0
    )
