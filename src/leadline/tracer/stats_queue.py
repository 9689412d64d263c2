"""Measures many small tensors together: each is copied when it is made, and copies of one shape are reduced at once.

In the middle of a pass, a call that reduces a small tensor takes several times as long as in a loop of its own, because
the pass has driven its code out of the caches. The reductions of a batch share that cost.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from leadline.tracer import stats
from leadline.tracer.attention import summarize
from leadline.tracer.stats import RawStats, RawUnits, UnitKind
from leadline.tracer.values import ValueEntry

# Heuristic: 128 kB; copying a larger tensor takes about as long as measuring it with others saves.
MAX_QUEUED_SIZE = 32768
# Heuristic: elements that are measured together, 2 MB; smaller batches take more calls, larger ones leave the caches.
MAX_BATCH_SIZE = 2**19
# Heuristic: elements that memory is reserved for, 32 MB; a network with more shapes than fit in is measured more often.
MAX_RESERVED_SIZE = 2**23
# Heuristic: tensors that are measured together; more save no more than a hundredth of a call each.
MAX_BATCH_ROWS = 128


_Waiting = tuple[ValueEntry, UnitKind | None]
"""An entry, and what to measure of its units."""


class StatsQueue:
    """Values of one pass that wait to be measured; the results are written into their entries.

    Gradients do not wait: a copy takes as long as the one reduction that measures them.
    """

    def __init__(self) -> None:
        self._batches: dict[tuple[torch.Size, bool], _Batch] = {}
        self._reserved_size = 0
        self._logits: dict[tuple[torch.Size, torch.device], list[tuple[ValueEntry, Tensor]]] = {}
        self._logit_count = 0

    def add(self, tensor: Tensor, entry: ValueEntry, units: UnitKind | None = None) -> bool:
        """Copy a tensor and measure it later; False if it is not one of those that can wait.

        `units` says what to measure of its units, which are slices along its last axis.
        """
        if not _is_plain(tensor) or not 0 < tensor.numel() <= MAX_QUEUED_SIZE or not tensor.is_contiguous():
            return False
        if stats.unobservable(tensor):
            return False
        key = (tensor.shape, units is not None)
        batch = self._batches.get(key)
        if batch is None:
            if self._reserved_size + MAX_BATCH_SIZE > MAX_RESERVED_SIZE:
                self.measure()
            batch = self._batches[key] = _Batch(tensor, has_units=units is not None)
            self._reserved_size += batch.reserved_size
        batch.add(tensor, (entry, units))
        return True

    def add_attention(self, entry: ValueEntry, logits: Tensor) -> None:
        """Measure an attention by its logits later; nobody else may write to them."""
        self._logits.setdefault((logits.shape, logits.device), []).append((entry, logits))
        self._logit_count += logits.numel()
        if self._logit_count > MAX_BATCH_SIZE:
            self._measure_attentions()

    def _measure_attentions(self) -> None:
        groups, self._logits, self._logit_count = self._logits, {}, 0
        for waiting in groups.values():
            measured = summarize(torch.stack([logits for _, logits in waiting]))
            for (entry, _), attended in zip(waiting, measured, strict=True):
                entry.attended = attended

    def measure(self) -> None:
        """Measure everything that waits, and free the memory."""
        self._measure_attentions()
        for batch in self._batches.values():
            batch.measure()
        self._batches.clear()
        self._reserved_size = 0


def _is_plain(tensor: Tensor) -> bool:
    """Whether this is an ordinary tensor of float32 numbers in the memory of the host."""
    return (
        type(tensor) is Tensor
        and tensor.dtype is torch.float32
        and tensor.is_cpu
        and tensor.layout is torch.strided
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

    def add(self, tensor: Tensor, waiting: _Waiting) -> None:
        """Copy a tensor, and measure all of them if no more fit."""
        self._rows[len(self._waiting)].copy_(tensor.detach())
        self._waiting.append(waiting)
        if len(self._waiting) == len(self._rows):
            self.measure()

    def measure(self) -> None:
        """Measure what waits."""
        count = len(self._waiting)
        if not count:
            return
        waiting, self._waiting = self._waiting, []
        flat = self._memory[:count].view(count, self._size)
        values = flat.view(count, -1, self._units) if self._units else None
        sums = flat if values is None else values.sum(1)
        columns = (flat.amin(1), flat.amax(1), torch.linalg.vector_norm(flat, dim=1), sums.sum(1))
        measured = torch.stack(columns, 1).tolist()
        exact = {
            index: stats.measure_now(flat[index])
            for index, (low, high, *_) in enumerate(measured)
            if not _is_safe(low, high)
        }
        if values is not None:
            _measure_units(waiting, values, sums, [low for low, *_ in measured])
        # Signs take the place of the values: new memory for them would cost more than everything else.
        sign_norms = torch.linalg.vector_norm(flat.sign_(), dim=1).tolist()
        rows = zip(waiting, measured, sign_norms, strict=True)
        for index, ((entry, _), (low, high, norm, total), sign_norm) in enumerate(rows):
            nonzero = float(round(sign_norm**2)) if index not in exact else 0.0
            raw = RawStats(self._size, 1.0, total, norm, low, high, nonzero, 0.0)
            entry.forward, entry.is_queued = exact.get(index, raw), False


def _is_safe(low: float, high: float) -> bool:
    """Whether all numbers between these bounds are finite, and their squares within the range of float32."""
    peak = max(-low, high)
    return math.isfinite(low + high) and (peak == 0 or stats.SAFE_PEAK[0] < peak < stats.SAFE_PEAK[1])


def _measure_units(waiting: list[_Waiting], values: Tensor, sums: Tensor, lows: list[float]) -> None:
    """Measure the units of values of the shape (value, sample or position, unit); `sums` are over the second axis."""
    samples, units = values.shape[1:]
    norms = torch.linalg.vector_norm(sums, dim=1).tolist()
    alive = (sums != 0).sum(1).tolist() if any(kind and kind.is_activation for _, kind in waiting) else []
    for index, (entry, kind) in enumerate(waiting):
        entry.shared_mean = (norms[index] / samples) ** 2 / units
        if kind is None or not kind.is_activation:
            continue
        if kind.bounds is None and (alive[index] == units or lows[index] == 0):
            entry.units = RawUnits(units, alive[index], None)
        else:
            entry.units = stats.measure_units(values[index], kind._replace(dim=-1), lows[index], sums[index])
