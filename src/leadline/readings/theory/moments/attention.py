"""Moment rule of scaled dot-product attention: matmul, softmax and matmul as one op."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from leadline.readings.theory.field import RandomField, contracted, reshaped, scaled, summed, unbroadcast
from leadline.readings.theory.gradient import Terms, gradient_field, new_noise
from leadline.readings.theory.moment_rule import (
    Call,
    MomentMap,
    UnpredictableError,
    expanded,
    moment_rule,
    single_output,
)
from leadline.readings.theory.moments.pointwise import MIN_MASK_VALUE
from leadline.readings.theory.moments.softmax import softmax_field, softmax_gradient
from leadline.readings.theory.signal import Signal, fluctuation, rearranged

BATCH_LETTERS = "abcdefgh"


@moment_rule(assumes="tokens, and their gradients, are independent except for what all of them share")
def attention(call: Call) -> MomentMap:
    r"""$y_i = \sum_j p_{ij} v_j$, $p = \mathrm{softmax}(c\,q_i k_j)$ over $n$ keys with $P_2 = E\sum_j p_j^2$:

    $$ E[y^2] = P_2\,q_v + (1 - P_2)\,\bar v, \qquad \sigma^2 = c^2 d\,q_q (q_k - \bar k) $$
    where $\bar v$, $\bar k$ are what tokens share and $\sigma^2$ is the variance of logits within a row. Gradients are
    those of the three ops.
    """
    (query, q), (key, k), (source, v) = (call.read(place) for place in range(3))
    rank = len(call.output.shape)
    q, k, v = (_batched(each, call.output.shape) for each in (q, k, v))
    batch = BATCH_LETTERS[: rank - 2]
    letters = {"q": batch + "xd", "k": batch + "yd", "v": batch + "yz", "p": batch + "xy", "y": batch + "xz"}
    factor = call.argument("scale", 6)
    factor = 1 / math.sqrt(q.field.shape[-1]) if factor is None else float(factor)
    logits = scaled(contracted(q.field, letters["q"], k.field, letters["k"], letters["p"]), factor)
    logits, visible_share = _masked(call, logits)
    keep_probability = 1 - float(call.argument("dropout_p", 4, 0.0) or 0.0)
    p, expectations = softmax_field(logits, rank - 1, visible_share)
    dropped = replace(p, ms=p.ms / keep_probability)
    field = contracted(dropped, letters["p"], v.field, letters["v"], letters["y"])
    out = call.sources.gaussian(field, fluctuation(v))

    def back(grads: Sequence[Terms]) -> Mapping[int, Terms]:
        g = gradient_field(grads[0], out)
        g_v = contracted(g, letters["y"], dropped, letters["p"], letters["v"])
        g_p = contracted(g, letters["y"], v.field, letters["v"], letters["p"])
        g_s = softmax_gradient(g_p, p, rank - 1, expectations)
        g_s = scaled(g_s, factor / math.sqrt(keep_probability))
        g_q = contracted(g_s, letters["p"], k.field, letters["k"], letters["q"])
        g_k = contracted(g_s, letters["p"], q.field, letters["q"], letters["k"])
        pairs = ((query, g_q), (key, g_k), (source, g_v))
        return {
            value: new_noise(_summed_heads(each, call.signals[value].field.shape)) for value, each in pairs
        }

    return single_output(out, back)


def _batched(signal: Signal, shape: tuple[int, ...]) -> Signal:
    """The signal with the batch axes of the result: several heads may share keys and values."""
    own = signal.field.shape
    if len(own) != len(shape):
        raise UnpredictableError("operands with different numbers of axes")
    wide = (
        tuple(size if mine == 1 else mine for mine, size in zip(own[:-2], shape[:-2], strict=True)) + own[-2:]
    )
    grouped = expanded(signal, wide)
    if wide[:-2] == shape[:-2]:
        return grouped
    if any(size % mine for mine, size in zip(wide[:-2], shape[:-2], strict=True)):
        raise UnpredictableError("query heads that are not a multiple of the key heads")
    return rearranged(grouped, lambda field: _repeated(field, shape))


def _repeated(field: RandomField, shape: tuple[int, ...]) -> RandomField:
    """The field with each key or value head repeated for a group of query heads: pairs in a group are copies."""
    share = []
    for axis, (size, own) in enumerate(zip(field.shape, field.share, strict=True)):
        wide = shape[axis] if axis < len(shape) - 2 else size
        copies = (wide / size - 1) / (wide - 1) if wide > size else 0.0
        share.append(own + copies * (field.ms - own))
    whole = tuple(shape[:-2]) + field.shape[-2:]
    return RandomField(shape=whole, mean=field.mean, ms=field.ms, share=tuple(share))


def _summed_heads(g: RandomField, shape: tuple[int, ...]) -> RandomField:
    """The sum of a gradient over the query heads that read the same key or value head."""
    if len(shape) != len(g.shape) or all(own in (1, size) for own, size in zip(shape, g.shape, strict=True)):
        return unbroadcast(g, shape)
    axis = next(a for a, (own, size) in enumerate(zip(shape, g.shape, strict=True)) if own not in (1, size))
    group = g.shape[axis] // shape[axis]
    split = (*g.shape[:axis], shape[axis], group, *g.shape[axis + 1 :])
    return summed(reshaped(g, split), (axis + 1,), keep=False)


def _masked(call: Call, logits: RandomField) -> tuple[RandomField, float]:
    """Logits with what a mask adds, and the share of keys that it leaves visible."""
    n = logits.shape[-1]
    causal = (n + 1) / (2 * n)
    if call.argument("is_causal", 5):
        return logits, causal
    value = call.id("attn_mask", 3)
    if value is None:
        return logits, 1.0
    record = call.value(value)
    if record.dtype == "bool":
        return logits, causal if value in call.causal else 1.0
    stats, mask = record.forward, call.signals.get(value)
    if stats is not None and stats.abs_max > MIN_MASK_VALUE:
        return logits, stats.zero_share or 1.0
    if mask is None:
        return logits, 1.0
    wide = expanded(mask, logits.shape).field
    share = tuple(a + b for a, b in zip(logits.share, wide.share, strict=True))
    return replace(logits, ms=logits.ms + wide.ms, share=share), 1.0
