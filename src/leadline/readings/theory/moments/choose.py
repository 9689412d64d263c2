"""The largest of a row: `topk`, and the elements gathered at the places it found. What routes tokens to experts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from leadline.ops.arguments import argument
from leadline.readings.theory import quadrature
from leadline.readings.theory.field import RandomField
from leadline.readings.theory.gradient import Terms, fresh, total, weighted
from leadline.readings.theory.moment_rule import Call, MomentMap, UnpredictableError, moment_rule, one
from leadline.readings.theory.moments.softmax import STEPS
from leadline.readings.theory.signal import Signal, nodes_of

ROWS = 2**13  # drawn for a row's expectations; means err by one over the root, 1 % of a standard deviation
MOST = 2**10  # places of a row that are drawn; ours: routers choose among fewer


class Chosen(NamedTuple):
    """Expectations over rows of the $k$ chosen $v_1 \\ldots v_k$."""

    mean: float
    ms: float
    together: float
    """$E[v_r v_{r'}]$ for two ranks of one row."""
    apart: float
    """$E[v_r]^2$, averaged over ranks: what rows that know nothing of each other share."""


@moment_rule(assumes="places of a row are Gaussian, or softmax weights of Gaussian logits, and alike")
def topk(call: Call) -> MomentMap:
    r"""The $k$ largest of the $n$ places of a row: order statistics, by a fixed sample of rows.

    $E[v]$, $E[v^2]$ and $E[v_r v_{r'}]$ are those of the sample; rows share $E[v_r]^2$, and more as far as they are
    alike. The gradient goes to the chosen: $g_x^2 = \frac{k}{n} g_y^2$, as a function of the source $z$ of $x$
    $\pi(z)\,g_y^2$ with the probability $\pi$ to be chosen, so that the slope of what $x$ was made by is that at large
    $x$. Not so behind a softmax, which mixes places: there the gradient of the logits comes out too small (a third of
    it where they spread by two).
    """
    value, x = call.read()
    axis = int(call.argument("dim", 2, -1)) % len(x.field.shape)
    largest = call.argument("largest", 3, default=True) is not False
    made = chosen_of(call, x, value, axis, largest=largest)
    return MomentMap(outputs=(made.outputs[0], None), back=made.back)


def gathered_at(call: Call) -> tuple[int, bool] | None:
    """Axis and direction of the `topk` whose places a gather reads; None if it reads others.

    That must have chosen in a tensor of the same shape: the scores themselves, or these with a bias for balance.
    """
    index = call.value(call.op.inputs[1]) if len(call.op.inputs) > 1 else None
    found = None if index is None or index.op is None else call.trace.ops[index.op]
    if found is None or found.name != "topk":
        return None
    shape = call.value(found.inputs[0]).shape
    if shape != call.value(call.op.inputs[0]).shape:
        return None
    return int(argument(found, "dim", 2, -1)) % len(shape), argument(
        found, "largest", 3, default=True
    ) is not False


def chosen_of(call: Call, x: Signal, value: int, axis: int, *, largest: bool) -> MomentMap:
    """The transfer of the chosen places of `x`, which is what they were chosen by."""
    n, k = x.field.shape[axis], call.output.shape[axis]
    if not 0 < k <= n <= MOST:
        raise UnpredictableError(f"{k} of {n} places")
    found = _expectations(call, x, value, axis, k if largest else -k)
    spread = x.field.ms - (x.field.share[axis] if n > 1 else x.field.ms)
    alike = [_alike(x.field, each, axis, spread) for each in range(len(x.field.shape))]
    share = tuple(
        found.ms
        if size == 1
        else found.together
        if each == axis
        else found.apart + alike[each] * (found.ms - found.apart)
        for each, size in enumerate(call.output.shape)
    )
    field = RandomField(shape=call.output.shape, mean=found.mean, ms=found.ms, share=share)
    out = call.sources.gaussian(field, x.noise, exact=x.exact)
    part = k / n
    odds = None if x.key < 0 or x.exact else _odds(x, n, k, largest=largest).sqrt()

    def back(grads: Sequence[Terms]) -> Mapping[int, Terms]:
        g = total(grads[0], out)
        both = part * (k - 1) / (n - 1) if n > 1 else part
        share = tuple(
            part * g.ms
            if size == 1
            else both * g.share[each]
            if each == axis
            else part * (part + alike[each] * (1 - part)) * g.share[each]
            for each, size in enumerate(x.field.shape)
        )
        if odds is None:
            return {
                value: fresh(
                    RandomField(shape=x.field.shape, mean=part * g.mean, ms=part * g.ms, share=share)
                )
            }
        wide = RandomField(
            shape=x.field.shape, mean=g.mean, ms=g.ms, share=tuple(each / part for each in share)
        )
        return {value: weighted(fresh(wide), odds)}

    return one(out, back)


def _odds(x: Signal, n: int, k: int, *, largest: bool) -> Tensor:
    r"""At the nodes of its source, the probability of a place to be among the $k$ largest of $n$.

    $\pi = \sum_{j<k} \binom{n-1}{j} (1 - F)^j F^{n-1-j}$: fewer than $k$ of the others are larger, $F$ being the
    distribution of $x$.
    """
    below = quadrature.ranks(nodes_of(x))
    below = below if largest else 1 - below
    return sum(
        (math.comb(n - 1, j) * (1 - below) ** j * below ** (n - 1 - j) for j in range(min(k, n))),
        start=torch.zeros_like(below),
    ).clamp(0, 1)


def _alike(field: RandomField, axis: int, row: int, spread: float) -> float:
    """How much of what sets the places of a row apart is the same in the next row along `axis`."""
    if axis == row or spread <= 0:
        return 1.0
    common = min(max(field.share[axis], 0.0), max(field.share[row], 0.0))
    return min(max((field.share[axis] - common) / spread, 0.0), 1.0)


def _expectations(call: Call, x: Signal, value: int, axis: int, k: int) -> Chosen:
    n = x.field.shape[axis]
    logits = _logits(call, value, axis)
    if logits is not None:
        spread = max(logits.ms - (logits.share[axis] if n > 1 else logits.ms), 0.0) ** 0.5
        return _of_softmax(n, k, min(round(spread * STEPS), 40 * STEPS))
    common = min(max(x.correlations[axis], 0.0), 1.0) if n > 1 else 1.0
    z = _draws(n)
    z = common**0.5 * _draws(1)[: len(z)] + (1 - common) ** 0.5 * z
    return _sorted(_at(x, z), k)


def _logits(call: Call, value: int, axis: int) -> RandomField | None:
    """What a softmax along the same axis read, if the tensor is its result."""
    record = call.value(value)
    while record.op is not None and call.trace.ops[record.op].kind == "cast":
        record = call.value(call.trace.ops[record.op].inputs[0])
    maker = None if record.op is None else call.trace.ops[record.op]
    if maker is None or maker.name != "softmax" or maker.inputs[0] not in call.signals:
        return None
    along = argument(maker, "dim", 1, -1)
    known = call.signals[maker.inputs[0]]
    return known.field if known.valid is None and int(along or 0) % len(record.shape) == axis else None


@lru_cache(maxsize=1024)
def _of_softmax(n: int, k: int, steps: int) -> Chosen:
    return _sorted(torch.softmax(_draws(n) * (steps / STEPS), dim=1), k)


@lru_cache(maxsize=32)
def _draws(columns: int) -> Tensor:
    generator = torch.Generator(device="cpu").manual_seed(columns)
    drawn = torch.randn(ROWS, columns, generator=generator, dtype=torch.float64, device="cpu")
    return (drawn - drawn.mean()) / drawn.std()


def _at(x: Signal, z: Tensor) -> Tensor:
    """The tensor as a function of its source, at any points: a line between the nodes."""
    if x.nodes is None:
        return x.field.mean + x.slope * z
    nodes, order = quadrature.nodes().sort()
    values = nodes_of(x)[order]
    right = torch.searchsorted(nodes, z.contiguous()).clamp(1, len(nodes) - 1)
    weight = (z - nodes[right - 1]) / (nodes[right] - nodes[right - 1])
    return values[right - 1] + weight.clamp(0, 1) * (values[right] - values[right - 1])


def _sorted(rows: Tensor, k: int) -> Chosen:
    """Moments of the `k` largest of each row; of the smallest if `k` is negative."""
    top = rows.topk(abs(k), dim=1, largest=k > 0).values
    count, ms = abs(k), float(top.square().mean())
    whole = float(top.sum(1).square().mean())
    return Chosen(
        mean=float(top.mean()),
        ms=ms,
        together=(whole - count * ms) / (count * (count - 1)) if count > 1 else ms,
        apart=float(top.mean(0).square().mean()),
    )
