"""Moment rules of softmax: how evenly it spreads its weights, and the gradient that passes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from msgspec.structs import replace

from leadline.readings.theory.field import RandomField, profile_of, reweighted
from leadline.readings.theory.gradient import Terms, gradient_field, new_noise
from leadline.readings.theory.moment_rule import Call, MomentMap, moment_rule, single_output
from leadline.readings.theory.moments.norm import centered
from leadline.readings.theory.position_profile import PositionProfile, normalized_profile

# Derived: the error of a mean over so many Gaussian logits is one over the root, 0.4 %.
SAMPLE_SIZE = 2**16

# Derived: longer rows are sampled at this length and scaled, because their sums no longer fluctuate.
MAX_SAMPLED_KEYS = 4096

# Heuristic: standard deviations of logits are rounded to 1/50, so that few tables are sampled; the error is 1 %.
SPREAD_STEPS = 50

# Derived: avoids a division by zero where softmax has collapsed and no gradient passes.
MIN_PASSED = 1e-30

# Derived: percent values are rounded, so that a visible share above this is the whole row.
MIN_FULL_SHARE = 0.999


@dataclass(frozen=True, slots=True, kw_only=True)
class SoftmaxMoments:
    """Expectations over rows of softmax weights $p$, averaged over the rows of a mask."""

    squared: float
    """$P_2 = E\\sum_j p_j^2$: one over the effective number of keys of a row."""
    passed: float
    """$E\\sum_j p_j^2 (1 - 2p_j + P_2)$: the share of an independent gradient that passes."""
    overlap: float
    """$E\\sum_j p_{ij} p_{i'j}$ for two rows with independent logits."""
    excess: float = 0.0
    """$E\\ln\\frac1n\\sum_j e^{s_j} - \\sigma^2/2$: zero for many keys, negative for few; for rows without a mask."""
    along_queries: float = 1.0
    """Variance of $\\sum_j g_j s_j$ over keys, with the gradient $g$ of the logits $s$, relative to independence."""
    along_keys: float = 1.0
    """Variance of $\\sum_i g_i s_i$ over queries, relative to independence."""
    squared_rows: tuple[float, ...] = ()
    """$P_2$ of each row under a causal mask, where row $i$ sees $i$ keys."""
    passed_rows: tuple[float, ...] = ()
    """The share of a gradient that passes in each row under a causal mask."""


@lru_cache(maxsize=4096)
def _sampled_moments(keys: int, steps: int, visible_percent: int) -> SoftmaxMoments:
    """From a fixed sample of Gaussian rows; `visible_percent` of the keys are visible through the mask."""
    spread = steps / SPREAD_STEPS
    causal = visible_percent < 100 * MIN_FULL_SHARE and abs(visible_percent - 50 * (keys + 1) / keys) < 5
    columns = min(keys, MAX_SAMPLED_KEYS)
    rows = max(SAMPLE_SIZE // columns, 8)
    normal = _samples(rows, columns)
    mass = normal.mul(spread).exp_()
    if causal:
        return _causal(mass, normal)
    columns = max(round(columns * visible_percent / 100), 1)
    p = mass[:, :columns] / mass[:, :columns].sum(1, keepdim=True)
    squares = p.square()
    second = squares.sum(1)
    passed = second - 2 * (squares * p).sum(1) + second.square()
    scale = columns / max(keys * visible_percent / 100, 1)
    shown = normal[:, :columns]
    around = shown - (p * shown).sum(1, keepdim=True)
    tilted = squares * (1 - 2 * p + second[:, None]) * shown.square()
    whole = max(float(passed.mean()), MIN_PASSED)
    return SoftmaxMoments(
        along_queries=float((squares * around.square()).sum(1).mean()) / whole if columns > 1 else 1.0,
        along_keys=float(tilted.sum(1).mean()) / whole if columns > 1 else 1.0,
        squared=float(second.mean()) * scale,
        passed=float(passed.mean()) * scale,
        overlap=scale / columns,
        excess=float(mass.mean(1).log().mean()) - spread**2 / 2,
    )


@lru_cache(maxsize=64)
def _samples(rows: int, columns: int) -> torch.Tensor:
    generator = torch.Generator(device="cpu").manual_seed(0)
    normal = torch.randn(rows, columns, generator=generator, dtype=torch.float64, device="cpu")
    return (normal - normal.mean()) / normal.std()


def _causal(mass: torch.Tensor, normal: torch.Tensor) -> SoftmaxMoments:
    """Averages over rows under a causal mask, where row $i$ sees the first $i$ keys."""
    whole = mass.cumsum(1)
    second = mass.square().cumsum(1) / whole.square()
    third = mass.pow(3).cumsum(1) / whole.pow(3)
    passed = second - 2 * third + second.square()
    square = mass.square()
    with_squares = (square * normal.square()).cumsum(1) / whole.square()
    with_cubes = (mass.pow(3) * normal.square()).cumsum(1) / whole.pow(3)
    keys = with_squares * (1 + second) - 2 * with_cubes
    center = (mass * normal).cumsum(1) / whole
    queries = with_squares + center.square() * second
    queries = queries - 2 * center * (square * normal).cumsum(1) / whole.square()
    n = mass.shape[1]
    harmonic = sum(1 / each for each in range(1, n + 1))
    overlap = 2 * (n - harmonic) / (n * (n - 1)) if n > 1 else 1.0
    return SoftmaxMoments(
        squared=float(second.mean()),
        passed=float(passed.mean()),
        overlap=overlap,
        along_queries=float(queries.mean()) / max(float(passed.mean()), MIN_PASSED) if n > 1 else 1.0,
        along_keys=float(keys.mean()) / max(float(passed.mean()), MIN_PASSED) if n > 1 else 1.0,
        squared_rows=tuple(second.mean(0).tolist()),
        passed_rows=tuple(passed.mean(0).tolist()),
    )


def softmax_moments(keys: int, variance: float, visible_share: float) -> SoftmaxMoments:
    """Expectations of a softmax over `keys` Gaussian logits of this variance, of which a mask shows a share."""
    steps = round(math.sqrt(max(variance, 0.0)) * SPREAD_STEPS)
    return _sampled_moments(keys, min(steps, 40 * SPREAD_STEPS), round(100 * visible_share))


def softmax_field(field: RandomField, axis: int, visible_share: float) -> tuple[RandomField, SoftmaxMoments]:
    """The field of softmax weights along an axis, and their expectations.

    $E[p] = 1/n$, $E[p^2] = P_2/n$; rows sum to 1, so that keys share $(1 - P_2)/(n(n-1))$; rows share their overlap.
    """
    n = field.shape[axis]
    apart = field.share[axis] if n > 1 else field.ms
    expectations = softmax_moments(n, field.ms - apart, visible_share)
    spread = field.ms - apart
    share = []
    for each, size in enumerate(field.shape):
        if size == 1:
            share.append(expectations.squared / n)
        elif each == axis:
            share.append((1 - expectations.squared) / (n * (n - 1)))
        else:
            both = min(max(field.share[each], 0.0), max(apart, 0.0))
            alike = min(max((field.share[each] - both) / spread, 0.0), 1.0) if spread > 0 else 1.0
            share.append(((1 - alike) * expectations.overlap + alike * expectations.squared) / n)
    profile = row_profile(field.shape, axis, expectations.squared_rows)
    weights = RandomField(
        shape=field.shape, mean=1 / n, ms=expectations.squared / n, share=tuple(share), profile=profile
    )
    return weights, expectations


def row_profile(shape: tuple[int, ...], axis: int, rows: Sequence[float]) -> PositionProfile | None:
    """The profile along the rows of a square of logits, given what each row of a causal mask has."""
    queries = axis - 1
    if not rows or queries < 0 or shape[queries] != len(rows):
        return None
    return normalized_profile(queries, rows)[1]


def softmax_gradient(g: RandomField, p: RandomField, axis: int, expectations: SoftmaxMoments) -> RandomField:
    r"""$g_s = p(g - \sum p g)$: $E[g_s^2] = (g^2 - \bar g)\,E\sum p^2(1 - 2p + P_2)/n$; rows sum to 0."""
    n = p.shape[axis]
    inner = centered(g, (axis,)) if n > 1 else g
    spread = inner.ms * n / (n - 1) if n > 1 else 0.0
    ms = spread * expectations.passed / n
    share = []
    for each, size in enumerate(p.shape):
        if size == 1:
            share.append(ms)
        elif each == axis:
            share.append(-ms / (n - 1))
        else:
            share.append(p.share[each] * inner.share[each])
    even = RandomField(shape=p.shape, mean=0.0, ms=ms, share=tuple(share), profile=profile_of(inner))
    return reweighted(even, row_profile(p.shape, axis, expectations.passed_rows))


@moment_rule(assumes="logits of a row are independent Gaussians")
def softmax(call: Call) -> MomentMap:
    r"""$p_j = e^{s_j} / \sum e^{s}$ for logits whose variance within a row is $\sigma^2 = q - s$.

    $n E\sum_j p_j^2 \to e^{\sigma^2}$ for many keys; in general by a fixed sample of Gaussian rows.
    """
    value, x = call.read()
    axis = int(call.argument("dim", 1, -1)) % len(x.field.shape)
    field, expectations = softmax_field(x.field, axis, x.visible_share or 1.0)
    out = replace(call.sources.gaussian(field), exact=True)
    return single_output(
        out,
        lambda grads: {
            value: new_noise(softmax_gradient(gradient_field(grads[0], out), field, axis, expectations))
        },
    )


@moment_rule(assumes="logits of a row are independent Gaussians")
def log_softmax(call: Call) -> MomentMap:
    r"""$y = s - \ln\sum e^s$, with the logarithm a number (see `logsumexp`). $g_s = g - p \sum g$."""
    value, x = call.read()
    axis = int(call.argument("dim", 1, -1)) % len(x.field.shape)
    n = x.field.shape[axis]
    p, expectations = softmax_field(x.field, axis, 1.0)
    spread = max(x.field.ms - (x.field.share[axis] if n > 1 else x.field.ms), 0.0)
    mean = -math.log(n) - spread / 2 - expectations.excess
    share = tuple(mean**2 + max(each - max(x.field.share[axis], 0.0), 0.0) for each in x.field.share)
    out = call.sources.gaussian(
        RandomField(shape=x.field.shape, mean=mean, ms=mean**2 + spread, share=share), x.noise
    )

    def back(grads: Sequence[Terms]) -> Mapping[int, Terms]:
        g = gradient_field(grads[0], out)
        row = n * g.ms + n * (n - 1) * (g.share[axis] if n > 1 else 0.0)
        ms = max(g.ms + (p.ms - 2 * p.mean / n) * row, 0.0)
        share = tuple(-ms / max(n - 1, 1) if each == axis else s for each, s in enumerate(g.share))
        return {value: new_noise(RandomField(shape=g.shape, mean=0.0, ms=ms, share=share))}

    return single_output(out, back)
