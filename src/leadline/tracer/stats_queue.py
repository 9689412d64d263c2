"""Measures many small tensors together: each is copied when it is made, and copies of one shape are reduced at once.

In the middle of a pass, a call that reduces a small tensor takes several times as long as in a loop of its own, because
the pass has driven its code out of the caches. The reductions of a batch share that cost.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from leadline.tracer import stats
from leadline.tracer.stats import RawStats, RawUnits
from leadline.tracer.values import ValueEntry

# Heuristic: 128 kB; copying a larger tensor takes about as long as measuring it with others saves.
MAX_QUEUED_SIZE = 32768
# Heuristic: elements that are measured together, 1 MB; more would not stay in a core's own cache.
MAX_BATCH_SIZE = 2**18
# Heuristic: elements that memory is reserved for, 16 MB; a network with more shapes than fit in is measured more often.
MAX_RESERVED_SIZE = 2**22
# Heuristic: tensors that are measured together; more save no more than a hundredth of a call each.
MAX_BATCH_ROWS = 128


class UnitKind(NamedTuple):
    """What is measured of the units of a value, besides the mean that the batch shares."""

    is_activation: bool
    bounds: tuple[float, float] | None
    """Limits of a bounded activation."""


class _Waiting(NamedTuple):
    entry: ValueEntry
    is_gradient: bool
    units: UnitKind | None


class StatsQueue:
    """Tensors of one pass that wait to be measured; the results are written into their entries."""

    def __init__(self) -> None:
        self._batches: dict[tuple[torch.Size, bool], _Batch] = {}
        self._reserved_size = 0

    def add(
        self, tensor: Tensor, entry: ValueEntry, *, is_gradient: bool = False, units: UnitKind | None = None
    ) -> bool:
        """Copy a tensor and measure it later; False if it is not one of those that can wait.

        `units` says what to measure of its units, which are slices along its last axis.
        """
        if not 0 < tensor.numel() <= MAX_QUEUED_SIZE or not _can_wait(tensor):
            return False
        key = (tensor.shape, units is not None)
        batch = self._batches.get(key)
        if batch is None:
            if self._reserved_size + MAX_BATCH_SIZE > MAX_RESERVED_SIZE:
                self.measure()
            batch = self._batches[key] = _Batch(tensor, has_units=units is not None)
            self._reserved_size += batch.reserved_size
        batch.add(tensor, _Waiting(entry, is_gradient, units))
        if batch.is_full:
            batch.measure()
        return True

    def measure(self) -> None:
        """Measure everything that waits, and free the memory."""
        for batch in self._batches.values():
            batch.measure()
        self._batches.clear()
        self._reserved_size = 0


def _can_wait(tensor: Tensor) -> bool:
    return (
        type(tensor) is Tensor
        and tensor.dtype is torch.float32
        and tensor.layout is torch.strided
        and tensor.device.type == "cpu"
        and tensor.is_contiguous()
        and not torch.is_inference_mode_enabled()
    )


class _Batch:
    """Copies of tensors of one shape, one after the other."""

    def __init__(self, tensor: Tensor, *, has_units: bool) -> None:
        self._size = tensor.numel()
        self._units = tensor.shape[-1] if has_units else 0
        count = max(1, min(MAX_BATCH_ROWS, MAX_BATCH_SIZE // self._size))
        # not `torch.empty`, which would follow a default device of the user
        self._memory = tensor.detach().new_empty((count, *tensor.shape))
        self._rows = self._memory.unbind()
        self.reserved_size = self._memory.numel()
        self._waiting: list[_Waiting] = []

    @property
    def is_full(self) -> bool:
        return len(self._waiting) == len(self._rows)

    def add(self, tensor: Tensor, waiting: _Waiting) -> None:
        self._rows[len(self._waiting)].copy_(tensor.detach())
        self._waiting.append(waiting)

    def measure(self) -> None:
        """Measure what waits."""
        count = len(self._waiting)
        if not count:
            return
        waiting, self._waiting = self._waiting, []
        flat = self._memory[:count].view(count, self._size)
        for (entry, is_gradient, _), row, raw in zip(waiting, flat, _measure_rows(flat), strict=True):
            measured = stats.measure_now(row) if raw is None else raw
            if is_gradient:
                entry.backward = measured
            else:
                entry.forward, entry.is_queued = measured, False
        if self._units:
            _measure_units(waiting, flat.view(count, -1, self._units))


def _measure_rows(flat: Tensor) -> list[RawStats | None]:
    """Measure each row; None for those whose squares may leave the range of float32, or that are not finite."""
    size = flat.shape[1]
    columns = (
        flat.amin(1),
        flat.amax(1),
        flat.sum(1),
        torch.linalg.vector_norm(flat, dim=1),
        torch.linalg.vector_norm(torch.sign(flat), dim=1),
    )
    rows: list[RawStats | None] = []
    for low, high, total, norm, sign_norm in torch.stack(columns, 1).tolist():
        peak = max(-low, high)
        if peak == 0:
            rows.append(RawStats(size, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0))
        elif stats.SAFE_PEAK[0] < peak < stats.SAFE_PEAK[1] and math.isfinite(low + high):
            rows.append(RawStats(size, 1.0, total, norm, low, high, float(round(sign_norm**2)), 0.0))
        else:
            rows.append(None)
    return rows


def _measure_units(waiting: list[_Waiting], values: Tensor) -> None:
    """Measure the units of values of the shape (value, sample or position, unit)."""
    samples, units = values.shape[1:]
    sums = values.sum(1)
    shared_means = (sums / samples).square().mean(1).tolist()
    alive = (sums != 0).sum(1).tolist()
    for index, (entry, _, kind) in enumerate(waiting):
        entry.shared_mean = shared_means[index]
        if kind is None or not kind.is_activation or entry.forward is None:
            continue
        if kind.bounds is None and entry.forward.nonzero == entry.forward.size:
            entry.units = RawUnits(units, units, None)
        elif kind.bounds is None and entry.forward.low == 0:
            entry.units = RawUnits(units, alive[index], None)
        else:
            entry.units = stats.measure_units(values[index], -1, kind.bounds, entry.forward, sums[index])
