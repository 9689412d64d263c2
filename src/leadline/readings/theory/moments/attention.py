"""Moment rule of scaled dot-product attention: matmul, softmax and matmul as one op."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from msgspec.structs import replace

from leadline.readings.theory.attention_pairs import (
    MIN_SHARE,
    AttentionPairs,
    AttentionRows,
    averaged_pairs,
    causal_weights,
    full_weights,
    key_gradient_pairs,
    query_gradient_pairs,
    scattered_pairs,
)
from leadline.readings.theory.common_tokens import common_tokens_gain, pair_excess
from leadline.readings.theory.field import (
    RandomField,
    contracted,
    pairs_of,
    profile_of,
    reshaped,
    scaled,
    summed,
    unbroadcast,
    with_pairs,
)
from leadline.readings.theory.gradient import (
    Terms,
    gradient_field,
    new_noise,
    new_radial_noise,
    radial_part,
    radial_ratio,
)
from leadline.readings.theory.moment_rule import (
    Call,
    MomentMap,
    UnpredictableError,
    expanded,
    moment_rule,
    single_output,
)
from leadline.readings.theory.moments.pointwise import MIN_MASK_VALUE
from leadline.readings.theory.moments.softmax import (
    MIN_FULL_SHARE,
    SoftmaxMoments,
    softmax_field,
    softmax_gradient,
)
from leadline.readings.theory.position_profile import MAX_PAIRS_LENGTH
from leadline.readings.theory.signal import Signal, fluctuation, rearranged

BATCH_LETTERS = "abcdefgh"


@moment_rule(assumes="tokens, and their gradients, are independent except for what all of them share")
def attention(call: Call) -> MomentMap:
    r"""$y_i = \sum_j p_{ij} v_j$, $p = \mathrm{softmax}(c\,q_i k_j)$ over $n$ keys with $P_2 = E\sum_j p_j^2$:

    $$ E[y^2] = P_2\,q_v + (1 - P_2)\,\bar v, \qquad \sigma^2 = c^2 d\,q_q (q_k - \bar k) $$
    where $\bar v$, $\bar k$ are what tokens share and $\sigma^2$ is the variance of logits within a row. Gradients are
    those of the three ops. Keys and values that read the same $D$ features are correlated: two tokens with the cosine
    $c$ have keys and values with the covariance $c^2$, and $E[c^2] = 1/D$. This adds $(1 - P_2)^2/D$ to the share of
    the gradient that reaches the queries; for $n$ keys with even weights it multiplies it by $1 + (n - 1)/D$. Under a
    causal mask, and where tokens differ, gradients and outputs keep the moments of each pair of tokens (see
    `attention_pairs`).
    """
    (query, q), (key, k), (source, v) = (call.read(place) for place in range(3))
    rank = len(call.output.shape)
    q, k, v = (_batched(each, call.output.shape) for each in (q, k, v))
    batch = BATCH_LETTERS[: rank - 2]
    letters = {"q": batch + "xd", "k": batch + "yd", "v": batch + "yz", "p": batch + "xy", "y": batch + "xz"}
    factor = call.argument("scale", 6)
    factor = 1 / math.sqrt(q.field.shape[-1]) if factor is None else float(factor)
    logits = scaled(contracted(q.field, letters["q"], k.field, letters["k"], letters["p"]), factor)
    products = logits
    logits, visible_share = _masked(call, logits)
    keep_probability = 1 - float(call.argument("dropout_p", 4, 0.0) or 0.0)
    p, expectations = softmax_field(logits, rank - 1, visible_share)
    dropped = replace(p, ms=p.ms / keep_probability)
    field = contracted(dropped, letters["p"], v.field, letters["v"], letters["y"])
    rows = _rows(expectations, logits.shape, visible_share, keep_probability)
    excess = pair_excess(call, key, source)
    variance = max(products.ms - products.share[-1], 0.0)
    if rows is None or not _differs_by_token(expectations, v.field):
        gain = common_tokens_gain(v.field, rank - 2, excess, variance, expectations.squared)
        field = replace(field, ms=field.ms + gain)
    else:
        share = tuple(s * v.field.ms / field.ms if field.ms else s for s in field.share)
        pairs = averaged_pairs(pairs_of(v.field, rank - 2), rows)
        gains = [
            common_tokens_gain(v.field, rank - 2, excess, variance, each) for each in rows.squared.tolist()
        ]
        pairs.diagonal().add_(pairs.new_tensor(gains) / max(v.field.ms, MIN_SHARE))
        field = with_pairs(replace(field, ms=v.field.ms, share=share), rank - 2, pairs)
    out = call.sources.gaussian(field, fluctuation(v))

    def back(grads: Sequence[Terms]) -> Mapping[int, Terms]:
        g = gradient_field(grads[0], out)
        g_v = contracted(g, letters["y"], dropped, letters["p"], letters["v"])
        g_p = contracted(g, letters["y"], v.field, letters["v"], letters["p"])
        g_s = softmax_gradient(g_p, p, rank - 1, expectations)
        g_s = scaled(g_s, factor / math.sqrt(keep_probability))
        g_q = contracted(g_s, letters["p"], k.field, letters["k"], letters["q"])
        if expectations.passed > 0:
            common = excess * (1 - expectations.squared) ** 2
            g_q = scaled(g_q, math.sqrt(1 + common / expectations.passed))
        g_k = contracted(g_s, letters["p"], q.field, letters["q"], letters["k"])
        if rows is not None and _differs_by_token(expectations, q.field, k.field, v.field, g):
            pairs = AttentionPairs(*(pairs_of(each, rank - 2) for each in (q.field, k.field, v.field, g)))
            size = g_p.ms * factor**2 / keep_probability
            g_v = _with_size(g_v, g.ms, scattered_pairs(pairs.output_gradient, rows))
            g_q = _with_size(g_q, size * k.field.ms, query_gradient_pairs(pairs, rows, excess))
            g_k = _with_size(g_k, size * q.field.ms, key_gradient_pairs(pairs, rows))
        gradients = {
            value: new_noise(_summed_heads(each, call.signals[value].field.shape))
            for value, each in ((query, g_q), (key, g_k), (source, g_v))
        }
        ratio = radial_ratio(radial_part(grads[0], out), g, out)
        gradients[source] = _along_values(gradients[source], call.signals[source], ratio, expectations)
        for value, along in ((query, expectations.along_queries), (key, expectations.along_keys)):
            gradients[value] = _along_logits(gradients[value], call.signals[value], along)
        return gradients

    return single_output(out, back)


def _with_size(g: RandomField, size: float, pairs: torch.Tensor) -> RandomField:
    """The gradient with these moments of pairs of tokens, in units of `size`; other axes keep their correlations."""
    share = tuple(each * size / g.ms if g.ms else each for each in g.share)
    return with_pairs(replace(g, ms=size, share=share), len(g.shape) - 2, pairs)


def _along_values(terms: Terms, v: Signal, ratio: float, expectations: SoftmaxMoments) -> Terms:
    r"""The gradient of the values with its part along them, given the `ratio` $\kappa$ of that of the output.

    A value is a share $P_2$ of the squared output of its row, so that $\sum g v$ has the variance
    $1 + (\kappa - 1) P_2$, averaged over the rows with their shares $P_2$ of the gradient.
    """
    rows = expectations.squared_rows or (expectations.squared,)
    share = sum(each * each for each in rows) / max(sum(rows), 1e-30)
    variance = max(1 + (ratio - 1) * share, 0.0) * terms[0].field.ms * v.field.ms
    return new_radial_noise(terms[0].field, v, {-1 - terms[0].noise: math.sqrt(variance)})


def _along_logits(terms: Terms, x: Signal, ratio: float) -> Terms:
    r"""The gradient of queries or keys with its part along them: $\sum g q = \sum g_s s$ over the logits $s$.

    Softmax weights grow with the logits, so that this sum has `ratio` times the variance that independent ones have.
    """
    field = terms[0].field
    variance = max(ratio * field.ms * x.field.ms, 0.0)
    return new_radial_noise(field, x, {-1 - terms[0].noise: math.sqrt(variance)})


def _rows(
    expectations: SoftmaxMoments, shape: tuple[int, ...], visible_share: float, keep: float
) -> AttentionRows | None:
    """The attention weights of each row, causal or without a mask; None under other masks, and for long rows."""
    queries, keys = shape[-2:]
    if max(queries, keys) > MAX_PAIRS_LENGTH:
        return None
    if len(expectations.squared_rows) == queries == keys:
        even, squared, passed = (
            causal_weights(keys),
            list(expectations.squared_rows),
            list(expectations.passed_rows),
        )
    elif visible_share >= MIN_FULL_SHARE:
        even = full_weights(queries, keys)
        squared, passed = [expectations.squared] * queries, [expectations.passed] * queries
    else:
        return None
    return AttentionRows(even, even.new_tensor(squared), even.new_tensor(passed), keep)


def _differs_by_token(expectations: SoftmaxMoments, *fields: RandomField) -> bool:
    """Whether pairs of tokens differ: under a causal mask, or if a tensor has a profile along them."""
    profiles = [profile_of(field) for field in fields]
    along_tokens = [each for each in profiles if each is not None and each.axis == len(fields[0].shape) - 2]
    return bool(expectations.squared_rows) or bool(along_tokens)


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
    uneven = profile_of(field)
    profile = uneven if uneven is not None and whole[uneven.axis] == field.shape[uneven.axis] else None
    return RandomField(shape=whole, mean=field.mean, ms=field.ms, share=tuple(share), profile=profile)


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
    if stats is not None and stats.abs_max >= MIN_MASK_VALUE:
        return logits, stats.zero_share or 1.0
    if mask is None:
        return logits, 1.0
    wide = expanded(mask, logits.shape).field
    share = tuple(a + b for a, b in zip(logits.share, wide.share, strict=True))
    return replace(logits, ms=logits.ms + wide.ms, share=share), 1.0
