"""Measure how an attention spreads over its keys. A fused one never forms its weights: a few rows are computed here."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from leadline.records import Attended
from leadline.tracer.stats import NOTHING_KNOWN, Known, Number, attempt, fetch_rows, transfer, unobservable

# Heuristic: masks add -1e4 or less to a logit, which may itself be large; the softmax of either is zero in every dtype.
MAX_MASKED_LOGIT = -5e3
# Heuristic: queries per head and sample to measure; over all heads and samples that is dozens, and at 64 queries it
# takes 1/16 of the cost of measuring all.
MAX_QUERY_ROWS = 4
# Heuristic: heads times samples of one attention whose logits are kept one by one.
MAX_SLICES = 4096
# Heuristic: logits that are measured together, 256 kB; smaller batches take more calls, larger ones leave the caches.
MAX_BATCH_SIZE = 2**16


class RawAttention(NamedTuple):
    """Number of keys; then purity, entropy, and variance and largest magnitude of the logits, of some rows."""

    keys: int
    numbers: tuple[Number, ...]
    slices: Tensor | None
    """Largest magnitude of the logits, then purity, of each head or each index of the first axis: (2, slices)."""


class HasAttention(Protocol):
    """What the measurement of an attention is written into."""

    attended: RawAttention | None


def attention_logits(  # noqa: PLR0913  (the signature of the measured op)
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor | None:
    """Return the logits of the last rows, which see (nearly) all keys under a causal mask; masked ones are -inf.

    Returns None if the tensors cannot be read. The pass is not changed.
    """
    if unobservable(query) or unobservable(key) or query.is_nested or not query.numel():
        return None
    with torch.no_grad(), torch._C.DisableTorchFunction():
        rows = min(MAX_QUERY_ROWS, query.shape[-2])
        q, k = query.detach()[..., -rows:, :].float(), key.detach().float()
        if enable_gqa and q.dim() > 2 and k.shape[-3] != q.shape[-3]:
            k = k.repeat_interleave(q.shape[-3] // k.shape[-3], dim=-3)
        logits = (q @ k.mT) * (scale if scale is not None else 1 / math.sqrt(q.shape[-1]))
        return _masked(logits, query.shape[-2], attn_mask, is_causal)


def softmax_logits(logits: Tensor) -> Tensor | None:
    """Return a copy of the last rows of logits (..., queries, keys) that a softmax over the keys reads.

    Returns None if they cannot be read, or have no axis in front of queries and keys.
    """
    if logits.dim() < 3 or not logits.is_floating_point() or logits.is_nested or not logits.numel():
        return None
    if unobservable(logits):
        return None
    with torch.no_grad(), torch._C.DisableTorchFunction():
        return logits.detach()[..., -MAX_QUERY_ROWS:, :].to(torch.float32, copy=True)


def _masked(logits: Tensor, queries: int, mask: Tensor | None, causal: bool) -> Tensor:
    rows, keys = logits.shape[-2:]
    if causal:
        visible = torch.arange(keys, device=logits.device) <= torch.arange(
            queries - rows, queries, device=logits.device
        ).unsqueeze(-1)
        return logits.masked_fill(~visible, -math.inf)
    if mask is None:
        return logits
    mask = mask.detach()
    mask = mask[..., -rows:, :] if mask.dim() > 1 and mask.shape[-2] > 1 else mask
    return logits.masked_fill(~mask, -math.inf) if mask.dtype is torch.bool else logits + mask.float()


class AttentionBatches:
    """Logits of attentions that wait to be measured; those of one shape are measured together."""

    def __init__(self) -> None:
        self._waiting: dict[tuple[torch.Size, torch.device], list[tuple[HasAttention, Tensor]]] = {}
        self._size = 0

    def add(self, entry: HasAttention, logits: Tensor | None) -> None:
        """Measure an attention by its logits later, if there are any; nobody else may write to them."""
        if logits is None:
            return
        if type(logits) is not Tensor:  # a tensor of another class may refuse
            measured, _ = attempt(summarize, logits[None])
            entry.attended = measured[0] if measured else None
            return
        self._waiting.setdefault((logits.shape, logits.device), []).append((entry, logits))
        self._size += logits.numel()
        if self._size > MAX_BATCH_SIZE:
            self.measure()

    def measure(self) -> None:
        """Measure everything that waits."""
        waiting, self._waiting, self._size = self._waiting, {}, 0
        for batch in waiting.values():
            measured = summarize(torch.stack([logits for _, logits in batch]))
            for (entry, _), attended in zip(batch, measured, strict=True):
                entry.attended = attended


def summarize(logits: Tensor) -> list[RawAttention]:
    """Measure the logits (attentions, ..., queries, keys) of attentions of one shape, and the weights they lead to."""
    with torch.no_grad(), torch._C.DisableTorchFunction():
        weights = logits.softmax(-1).nan_to_num(0.0)  # a fully masked row attends to nothing
        purities = weights.square().sum(-1)
        entropies = -torch.xlogy(weights, weights).sum(-1)
        visible = (logits > MAX_MASKED_LOGIT) & (logits < math.inf)
        count = visible.sum(-1).clamp_min(1)
        unmasked = torch.where(visible, logits, torch.zeros_like(logits))
        mean = unmasked.sum(-1) / count
        variances = (unmasked.square().sum(-1) / count - mean.square()).clamp_min(0)
        sizes = unmasked.abs()
        columns = [each.flatten(1).mean(1) for each in (purities, entropies, variances)]
        numbers = torch.stack((*columns, sizes.flatten(1).amax(1)), 1)
        rows = numbers.tolist() if numbers.is_cpu else [row.unbind() for row in numbers]
        slices = _by_slice(sizes, purities)
        return [
            RawAttention(logits.shape[-1], tuple(row), None if slices is None else slices[index])
            for index, row in enumerate(rows)
        ]


def _by_slice(sizes: Tensor, purities: Tensor) -> Tensor | None:
    """Reduce (attention, batch, heads, queries, keys) to one column per head, for each attention.

    Without the axis of the batch there is one column per index of the axis before the queries.
    """
    axis = sizes.dim() - 3
    if axis not in (1, 2) or sizes.shape[axis] > MAX_SLICES:
        return None
    others = [dim for dim in range(1, sizes.dim()) if dim != axis]
    return torch.stack((sizes.amax(others), purities.mean(others[:-1])), 1)


def fetch_attention(raws: Sequence[RawAttention], known: Known = NOTHING_KNOWN) -> list[Attended]:
    """Fetch the statistics of attentions, in one transfer per device."""
    rows = fetch_rows([raw.numbers for raw in raws], known)
    slices = {**known, **transfer(raw.slices for raw in raws if id(raw.slices) not in known)}
    return [
        Attended(
            keys=raw.keys,
            purity=row[0],
            entropy=row[1],
            logit_var=row[2],
            logit_max=row[3],
            slice_logits=tuple(slices.get(id(raw.slices), ())[: _slice_count(raw)]),
            slice_purities=tuple(slices.get(id(raw.slices), ())[_slice_count(raw) :]),
        )
        for raw, row in zip(raws, rows, strict=True)
    ]


def _slice_count(raw: RawAttention) -> int:
    return 0 if raw.slices is None else raw.slices.shape[1]
