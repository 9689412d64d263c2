"""Moment rule of the largest elements of a row: `topk`, and gathering at its indices, as in expert routing."""

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
from leadline.readings.theory.gradient import Terms, gradient_field, new_noise, weighted
from leadline.readings.theory.moment_rule import (
    Call,
    MomentMap,
    UnpredictableError,
    moment_rule,
    single_output,
)
from leadline.readings.theory.moments.softmax import SPREAD_STEPS
from leadline.readings.theory.signal import Signal, nodes_of

# Derived: the error of a sample mean is one over the root of the number of rows, 1 % of a standard deviation.
SAMPLE_ROWS = 2**13

# Heuristic: bounds the cost of the sample; routers choose among fewer positions.
MAX_ROW_LENGTH = 2**10


class OrderMoments(NamedTuple):
    """Expectations over rows of the $k$ largest elements $v_1 \\ldots v_k$."""

    mean: float
    ms: float
    together: float
    """$E[v_r v_{r'}]$ for two ranks of one row."""
    apart: float
    """$E[v_r]^2$, averaged over ranks: what independent rows share."""


@moment_rule(assumes="elements of a row are Gaussian, or softmax weights of Gaussian logits, and alike")
def topk(call: Call) -> MomentMap:
    r"""The $k$ largest of the $n$ elements of a row: order statistics, by a fixed sample of rows.

    $E[v]$, $E[v^2]$ and $E[v_r v_{r'}]$ are those of the sample; rows share $E[v_r]^2$, and more if they are alike. The
    gradient goes to the selected elements: $g_x^2 = \frac{k}{n} g_y^2$, or as a function of the source $z$ of $x$
    $\pi(z)\,g_y^2$ with the probability $\pi$ of being selected, so that the derivative of an activation before counts
    at large $x$. That fails after a softmax, which mixes elements: there the predicted gradient of the logits is too
    small (a third of the true one where their standard deviation is two).
    """
    value, x = call.read()
    axis = int(call.argument("dim", 2, -1)) % len(x.field.shape)
    largest = call.argument("largest", 3, default=True) is not False
    selected = select_largest(call, x, value, axis, largest=largest)
    return MomentMap(outputs=(selected.outputs[0], None), back=selected.back)


def find_gathered_topk(call: Call) -> tuple[int, bool] | None:
    """Axis and direction of the `topk` whose indices a gather reads; None if it reads other indices.

    The `topk` must have read a tensor of the same shape: the scores, or the scores with a bias for load balance.
    """
    index = call.value(call.op.inputs[1]) if len(call.op.inputs) > 1 else None
    maker = None if index is None or index.op is None else call.trace.ops[index.op]
    if maker is None or maker.name != "topk":
        return None
    shape = call.value(maker.inputs[0]).shape
    if shape != call.value(call.op.inputs[0]).shape:
        return None
    axis = int(argument(maker, "dim", 2, -1)) % len(shape)
    return axis, argument(maker, "largest", 3, default=True) is not False


def select_largest(call: Call, x: Signal, value: int, axis: int, *, largest: bool) -> MomentMap:
    """The moment map of the selected elements of `x`, which were selected by their own size."""
    n, k = x.field.shape[axis], call.output.shape[axis]
    if not 0 < k <= n <= MAX_ROW_LENGTH:
        raise UnpredictableError(f"the largest {k} of {n} elements")
    moments = _expectations(call, x, value, axis, k if largest else -k)
    spread = x.field.ms - (x.field.share[axis] if n > 1 else x.field.ms)
    alike = [_alike(x.field, each, axis, spread) for each in range(len(x.field.shape))]
    share = tuple(
        moments.ms
        if size == 1
        else moments.together
        if each == axis
        else moments.apart + alike[each] * (moments.ms - moments.apart)
        for each, size in enumerate(call.output.shape)
    )
    field = RandomField(shape=call.output.shape, mean=moments.mean, ms=moments.ms, share=share)
    out = call.sources.gaussian(field, x.noise, exact=x.exact)
    part = k / n
    root_probability = (
        None if x.key < 0 or x.exact else _selection_probability(x, n, k, largest=largest).sqrt()
    )

    def back(grads: Sequence[Terms]) -> Mapping[int, Terms]:
        g = gradient_field(grads[0], out)
        both = part * (k - 1) / (n - 1) if n > 1 else part
        share = tuple(
            part * g.ms
            if size == 1
            else both * g.share[each]
            if each == axis
            else part * (part + alike[each] * (1 - part)) * g.share[each]
            for each, size in enumerate(x.field.shape)
        )
        if root_probability is None:
            return {
                value: new_noise(
                    RandomField(shape=x.field.shape, mean=part * g.mean, ms=part * g.ms, share=share)
                )
            }
        wide = RandomField(
            shape=x.field.shape, mean=g.mean, ms=g.ms, share=tuple(each / part for each in share)
        )
        return {value: weighted(new_noise(wide), root_probability)}

    return single_output(out, back)


def _selection_probability(x: Signal, n: int, k: int, *, largest: bool) -> Tensor:
    r"""At the nodes of its source, the probability that an element is among the $k$ largest of $n$.

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
    """The share of the variance within a row that neighboring rows along `axis` have in common."""
    if axis == row or spread <= 0:
        return 1.0
    common = min(max(field.share[axis], 0.0), max(field.share[row], 0.0))
    return min(max((field.share[axis] - common) / spread, 0.0), 1.0)


def _expectations(call: Call, x: Signal, value: int, axis: int, k: int) -> OrderMoments:
    n = x.field.shape[axis]
    logits = _logits(call, value, axis)
    if logits is not None:
        spread = max(logits.ms - (logits.share[axis] if n > 1 else logits.ms), 0.0) ** 0.5
        return _of_softmax(n, k, min(round(spread * SPREAD_STEPS), 40 * SPREAD_STEPS))
    common = min(max(x.correlations[axis], 0.0), 1.0) if n > 1 else 1.0
    z = _samples(n)
    z = common**0.5 * _samples(1)[: len(z)] + (1 - common) ** 0.5 * z
    return _sorted(_at(x, z), k)


def _logits(call: Call, value: int, axis: int) -> RandomField | None:
    """The field of the logits, if the tensor is the softmax of them along the same axis."""
    record = call.value(value)
    while record.op is not None and call.trace.ops[record.op].kind == "cast":
        record = call.value(call.trace.ops[record.op].inputs[0])
    maker = None if record.op is None else call.trace.ops[record.op]
    if maker is None or maker.name != "softmax" or maker.inputs[0] not in call.signals:
        return None
    along = argument(maker, "dim", 1, -1)
    known = call.signals[maker.inputs[0]]
    return (
        known.field if known.visible_share is None and int(along or 0) % len(record.shape) == axis else None
    )


@lru_cache(maxsize=1024)
def _of_softmax(n: int, k: int, steps: int) -> OrderMoments:
    return _sorted(torch.softmax(_samples(n) * (steps / SPREAD_STEPS), dim=1), k)


@lru_cache(maxsize=32)
def _samples(columns: int) -> Tensor:
    generator = torch.Generator(device="cpu").manual_seed(columns)
    normal = torch.randn(SAMPLE_ROWS, columns, generator=generator, dtype=torch.float64, device="cpu")
    return (normal - normal.mean()) / normal.std()


def _at(x: Signal, z: Tensor) -> Tensor:
    """The tensor as a function of its source at any points, interpolated between the nodes."""
    if x.nodes is None:
        return x.field.mean + x.slope * z
    nodes, order = quadrature.nodes().sort()
    values = nodes_of(x)[order]
    right = torch.searchsorted(nodes, z.contiguous()).clamp(1, len(nodes) - 1)
    weight = (z - nodes[right - 1]) / (nodes[right] - nodes[right - 1])
    return values[right - 1] + weight.clamp(0, 1) * (values[right] - values[right - 1])


def _sorted(rows: Tensor, k: int) -> OrderMoments:
    """Moments of the `k` largest elements of each row; of the smallest if `k` is negative."""
    top = rows.topk(abs(k), dim=1, largest=k > 0).values
    count, ms = abs(k), float(top.square().mean())
    whole = float(top.sum(1).square().mean())
    return OrderMoments(
        mean=float(top.mean()),
        ms=ms,
        together=(whole - count * ms) / (count * (count - 1)) if count > 1 else ms,
        apart=float(top.mean(0).square().mean()),
    )
