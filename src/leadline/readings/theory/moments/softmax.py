"""Softmax: how evenly it spreads its weight, and the gradient it lets through."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from msgspec.structs import replace

from leadline.readings.theory.field import RandomField
from leadline.readings.theory.gradient import Terms, fresh, total
from leadline.readings.theory.moment_rule import Call, MomentMap, moment_rule, one
from leadline.readings.theory.moments.norm import centred

DRAWS = 2**16  # Gaussian logits drawn in all for a row's expectations: error 0.4 % (one over the root)
MOST_KEYS = 4096  # longer rows are taken for this long and scaled: their weights average themselves (derived)
STEPS = 50  # logit spreads are rounded to 1/50: their square root then errs by 1 %
FULL = 0.999


@dataclass(frozen=True, slots=True, kw_only=True)
class SoftmaxMoments:
    """Expectations over rows of softmax weights $p$, averaged over the rows of a mask."""

    squared: float
    """$P_2 = E\\sum_j p_j^2$: one over the number of keys a row really looks at."""
    passed: float
    """$E\\sum_j p_j^2 (1 - 2p_j + P_2)$: what of an independent gradient comes through."""
    overlap: float
    """$E\\sum_j p_{ij} p_{i'j}$ for two rows with independent logits."""
    excess: float = 0.0
    """$E\\ln\\frac1n\\sum_j e^{s_j} - \\sigma^2/2$: nothing for many keys, below it for few; of rows without a mask."""


@lru_cache(maxsize=4096)
def _table(keys: int, steps: int, shown: int) -> SoftmaxMoments:
    """By a fixed sample of Gaussian rows; `shown` is the share of keys in percent that the mask lets through."""
    spread = steps / STEPS
    causal = shown < 100 * FULL and abs(shown - 50 * (keys + 1) / keys) < 5
    columns = min(keys, MOST_KEYS)
    rows = max(DRAWS // columns, 8)
    mass = _draws(rows, columns).mul(spread).exp_()
    if causal:
        return _causal(mass)
    columns = max(round(columns * shown / 100), 1)
    p = mass[:, :columns] / mass[:, :columns].sum(1, keepdim=True)
    squares = p.square()
    second = squares.sum(1)
    passed = second - 2 * (squares * p).sum(1) + second.square()
    scale = columns / max(keys * shown / 100, 1)
    return SoftmaxMoments(
        squared=float(second.mean()) * scale,
        passed=float(passed.mean()) * scale,
        overlap=scale / columns,
        excess=float(mass.mean(1).log().mean()) - spread**2 / 2,
    )


@lru_cache(maxsize=64)
def _draws(rows: int, columns: int) -> torch.Tensor:
    generator = torch.Generator(device="cpu").manual_seed(0)
    drawn = torch.randn(rows, columns, generator=generator, dtype=torch.float64, device="cpu")
    return (drawn - drawn.mean()) / drawn.std()


def _causal(mass: torch.Tensor) -> SoftmaxMoments:
    """Row $i$ sees the first $i$ keys; averages over all rows."""
    whole = mass.cumsum(1)
    second = mass.square().cumsum(1) / whole.square()
    third = mass.pow(3).cumsum(1) / whole.pow(3)
    passed = second - 2 * third + second.square()
    n = mass.shape[1]
    harmonic = sum(1 / each for each in range(1, n + 1))
    overlap = 2 * (n - harmonic) / (n * (n - 1)) if n > 1 else 1.0
    return SoftmaxMoments(squared=float(second.mean()), passed=float(passed.mean()), overlap=overlap)


def weights_of(keys: int, variance: float, shown: float) -> SoftmaxMoments:
    """Of softmax over `keys` Gaussian logits with this variance, of which a mask shows a share."""
    steps = round(math.sqrt(max(variance, 0.0)) * STEPS)
    return _table(keys, min(steps, 40 * STEPS), round(100 * shown))


def attended(field: RandomField, axis: int, shown: float) -> tuple[RandomField, SoftmaxMoments]:
    """The field of softmax weights along an axis.

    $E[p] = 1/n$, $E[p^2] = P_2/n$; rows sum to 1, so that keys share $(1 - P_2)/(n(n-1))$; rows share their overlap.
    """
    n = field.shape[axis]
    apart = field.share[axis] if n > 1 else field.ms
    found = weights_of(n, field.ms - apart, shown)
    spread = field.ms - apart
    share = []
    for each, size in enumerate(field.shape):
        if size == 1:
            share.append(found.squared / n)
        elif each == axis:
            share.append((1 - found.squared) / (n * (n - 1)))
        else:
            both = min(max(field.share[each], 0.0), max(apart, 0.0))
            alike = min(max((field.share[each] - both) / spread, 0.0), 1.0) if spread > 0 else 1.0
            share.append(((1 - alike) * found.overlap + alike * found.squared) / n)
    made = RandomField(shape=field.shape, mean=1 / n, ms=found.squared / n, share=tuple(share))
    return made, found


def through(g: RandomField, p: RandomField, axis: int, found: SoftmaxMoments) -> RandomField:
    r"""$g_s = p(g - \sum p g)$: $E[g_s^2] = (g^2 - \bar g)\,E\sum p^2(1 - 2p + P_2)/n$; rows sum to 0."""
    n = p.shape[axis]
    inner = centred(g, (axis,)) if n > 1 else g
    spread = inner.ms * n / (n - 1) if n > 1 else 0.0
    ms = spread * found.passed / n
    share = []
    for each, size in enumerate(p.shape):
        if size == 1:
            share.append(ms)
        elif each == axis:
            share.append(-ms / (n - 1))
        else:
            share.append(p.share[each] * inner.share[each])
    return RandomField(shape=p.shape, mean=0.0, ms=ms, share=tuple(share))


@moment_rule(assumes="logits of a row are independent Gaussians")
def softmax(call: Call) -> MomentMap:
    r"""$p_j = e^{s_j} / \sum e^{s}$ for logits whose variance within a row is $\sigma^2 = q - s$.

    $n E\sum_j p_j^2 \to e^{\sigma^2}$ for many keys; in general by a fixed sample of Gaussian rows.
    """
    value, x = call.read()
    axis = int(call.argument("dim", 1, -1)) % len(x.field.shape)
    field, found = attended(x.field, axis, x.valid or 1.0)
    out = replace(call.sources.gaussian(field), exact=True)
    return one(out, lambda grads: {value: fresh(through(total(grads[0], out), field, axis, found))})


@moment_rule(assumes="logits of a row are independent Gaussians")
def log_softmax(call: Call) -> MomentMap:
    r"""$y = s - \ln\sum e^s$, with the logarithm a number (see `logsumexp`). $g_s = g - p \sum g$."""
    value, x = call.read()
    axis = int(call.argument("dim", 1, -1)) % len(x.field.shape)
    n = x.field.shape[axis]
    p, found = attended(x.field, axis, 1.0)
    spread = max(x.field.ms - (x.field.share[axis] if n > 1 else x.field.ms), 0.0)
    mean = -math.log(n) - spread / 2 - found.excess
    share = tuple(mean**2 + max(each - max(x.field.share[axis], 0.0), 0.0) for each in x.field.share)
    out = call.sources.gaussian(
        RandomField(shape=x.field.shape, mean=mean, ms=mean**2 + spread, share=share), x.noise
    )

    def back(grads: Sequence[Terms]) -> Mapping[int, Terms]:
        g = total(grads[0], out)
        row = n * g.ms + n * (n - 1) * (g.share[axis] if n > 1 else 0.0)
        ms = max(g.ms + (p.ms - 2 * p.mean / n) * row, 0.0)
        share = tuple(-ms / max(n - 1, 1) if each == axis else s for each, s in enumerate(g.share))
        return {value: fresh(RandomField(shape=g.shape, mean=0.0, ms=ms, share=share))}

    return one(out, back)
