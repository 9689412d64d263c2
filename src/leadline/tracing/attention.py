"""How a fused attention spreads over its keys: its weights are never formed, so a few rows of them are, here."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from leadline import stats
from leadline.stats import AttentionReading

MASKED = -1e4  # ours: masks add this or less; a softmax of such a logit is zero in every dtype
ROWS = 4  # queries looked at; ours: with every head and sample that is dozens, for 1/16 of the cost at 64 queries


def measure_attention(  # noqa: PLR0913  (the signature of the op it looks at)
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> AttentionReading | None:
    """Purity, entropy, variance and size of the logits of the last rows (which a causal mask lets see all keys).

    None where the tensors cannot be read. Nothing of the pass is changed.
    """
    if stats.unobservable(query) or stats.unobservable(key) or query.is_nested or not query.numel():
        return None
    with torch.no_grad(), torch._C.DisableTorchFunction():
        rows = min(ROWS, query.shape[-2])
        q, k = query.detach()[..., -rows:, :].float(), key.detach().float()
        if enable_gqa and q.dim() > 2 and k.shape[-3] != q.shape[-3]:
            k = k.repeat_interleave(q.shape[-3] // k.shape[-3], dim=-3)
        logits = (q @ k.mT) * (scale if scale is not None else 1 / math.sqrt(q.shape[-1]))
        return _summary(_masked(logits, query.shape[-2], attn_mask, is_causal))


def _masked(logits: Tensor, queries: int, mask: Tensor | None, causal: bool) -> Tensor:
    rows, keys = logits.shape[-2:]
    if causal:
        seen = torch.arange(keys, device=logits.device) <= torch.arange(
            queries - rows, queries, device=logits.device
        ).unsqueeze(-1)
        return logits.masked_fill(~seen, -math.inf)
    if mask is None:
        return logits
    mask = mask.detach()
    mask = mask[..., -rows:, :] if mask.dim() > 1 and mask.shape[-2] > 1 else mask
    return logits.masked_fill(~mask, -math.inf) if mask.dtype is torch.bool else logits + mask.float()


def _summary(logits: Tensor) -> AttentionReading:
    weights = logits.softmax(-1).nan_to_num(0.0)  # a row in which all is masked attends to nothing
    purity = weights.square().sum(-1).mean()
    entropy = -torch.xlogy(weights, weights).sum(-1).mean()
    finite = torch.isfinite(logits)
    count = finite.sum(-1).clamp_min(1)
    held = torch.where(finite, logits, torch.zeros_like(logits))
    mean = held.sum(-1) / count
    variance = (held.square().sum(-1) / count - mean.square()).clamp_min(0).mean()
    largest = torch.where(held > MASKED, held, torch.zeros_like(held)).abs().amax()
    return AttentionReading(logits.shape[-1], torch.stack((purity, entropy, variance, largest)))
