"""Sums and products: of numbers, of functions of one source, and of independent tensors."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from leadline.ops.arguments import value_of
from leadline.readings.theory.field import RandomField, broadcast, product, scaled, unbroadcast
from leadline.readings.theory.gradient import Terms, fresh, total, weighted
from leadline.readings.theory.moment_rule import Call, MomentMap, UnpredictableError, fitted, moment_rule, one
from leadline.readings.theory.moments.pointwise import MASKED, apply_pointwise, operands, returned
from leadline.readings.theory.signal import Signal, number, slope_of

CONSTANT = 1 - 1e-9  # a correlation from which on neighbours are copies of each other (rounding)


@moment_rule(assumes="branches are independent, but for their means and what they were both made of")
def add(call: Call) -> MomentMap:
    r"""$y = a x_1 + b x_2$ with covariance $C$ of the two:

    $$ E[y^2] = a^2 q_1 + b^2 q_2 + 2ab(\mu_1\mu_2 + C) $$
    $C$ is exact where both are functions of one source or were added from the same sources, else 0: a branch that ends
    in fresh weights knows nothing of the skip. The gradient passes to both.
    """
    left, right = _side(call, 0), _side(call, 1)
    alpha = float(call.argument("alpha", 2, 1) or 1)
    factors = {"add": (1.0, alpha), "sub": (1.0, -alpha), "rsub": (-alpha, 1.0)}[call.op.name]
    if left is None or right is None:
        raise UnpredictableError(f"nothing is known of what {call.op.name} reads")
    for one_side, other in ((left, right), (right, left)):
        if _is_mask(call, other):
            return _masked(call, one_side, other)
    shape = call.output.shape
    a, b = _times(fitted(left[1], shape), factors[0]), _times(fitted(right[1], shape), factors[1])
    if a.key == b.key and a.key >= 0 and (a.nodes is not None or b.nodes is not None):
        return apply_pointwise(call)
    out = _sum(call, a, b)

    def back(grads: Sequence[Terms]) -> Mapping[int, Terms]:
        kept = grads[0] if out.key in (a.key, b.key) and out.key >= 0 else fresh(total(grads[0], out))
        found: dict[int, Terms] = {}
        for (value, signal), factor in zip((left, right), factors, strict=True):
            if value is not None:
                terms = returned(weighted(kept, factor), signal)
                found[value] = (*found.get(value, ()), *terms)
        return found

    return one(out, back)


Side = tuple[int | None, Signal]


def _side(call: Call, position: int) -> Side | None:
    """An operand: a tensor with its id, or a number."""
    argument = call.op.args[position] if position < len(call.op.args) else call.op.kwargs.get("other")
    if isinstance(argument, int | float) and not isinstance(argument, bool):
        return None, number((), float(argument))
    value = value_of(argument)
    if value is None:
        spelled = {"Infinity": math.inf, "-Infinity": -math.inf}
        return (None, number((), spelled[argument])) if argument in spelled else None
    signal = call.signals.get(value)
    return None if signal is None else (value, signal)


def _times(x: Signal, factor: float) -> Signal:
    if factor == 1.0:
        return x
    nodes = None if x.nodes is None else x.nodes * factor
    return replace(x, field=scaled(x.field, factor), slope=x.slope * factor, nodes=nodes)


def _sum(call: Call, a: Signal, b: Signal) -> Signal:
    if a.tight or b.tight:
        moving, still = (b, a) if a.tight else (a, b)
        return _shifted(moving, still)
    if a.key == b.key:
        slope = a.slope + b.slope
        mean = a.field.mean + b.field.mean
        share = tuple(mean**2 + slope**2 * each for each in a.correlations)
        field = replace(a.field, mean=mean, ms=mean**2 + slope**2, share=share)
        return replace(a, field=field, slope=slope, exact=False)
    cross = call.sources.covariance(a, b)
    field = _sum_of_fields(a, b, cross)
    parts = {a.key: slope_of(a), b.key: slope_of(b)}
    noise = _noise_of_sum(a, b)
    return call.sources.gaussian(field, noise, parts)


def _noise_of_sum(a: Signal, b: Signal) -> float:
    """Relative errors of two terms, weighted by their squared parts of the sum."""
    whole = a.field.ms + b.field.ms
    return a.noise * (a.field.ms / whole) ** 2 + b.noise * (b.field.ms / whole) ** 2 if whole else 0.0


def _sum_of_fields(a: Signal, b: Signal, cross: float) -> RandomField:
    means = a.field.mean * b.field.mean
    alike = map(_alike, a.correlations, b.correlations)
    share = tuple(
        x + y + 2 * (means + cross * each)
        for x, y, each in zip(a.field.share, b.field.share, alike, strict=True)
    )
    return RandomField(
        shape=a.field.shape,
        mean=a.field.mean + b.field.mean,
        ms=max(a.field.ms + b.field.ms + 2 * (means + cross), 0.0),
        share=share,
    )


def _alike(x: float, y: float) -> float:
    """How much of a covariance neighbours have too: all of it where one side is the same for all of them."""
    return 1.0 if max(x, y) > CONSTANT else math.sqrt(max(x * y, 0.0))


def _shifted(x: Signal, by: Signal) -> Signal:
    """A number added to a function of a source, or to a number."""
    shift = by.field.mean
    twice = 2 * shift * x.field.mean + shift**2
    field = replace(
        x.field,
        mean=x.field.mean + shift,
        ms=max(x.field.ms + twice, 0.0),
        share=tuple(each + twice for each in x.field.share),
    )
    nodes = None if x.nodes is None else x.nodes + shift
    return replace(x, field=field, nodes=nodes, exact=x.exact and not shift, noise=max(x.noise, by.noise))


def _is_mask(call: Call, side: Side) -> bool:
    """Huge negative numbers, with zeros between them; a huge positive one is a sum of squares, or an explosion."""
    value, signal = side
    if value is None:
        return False
    stats = call.value(value).forward
    if stats is None:
        return signal.field.mean < -MASKED and call.output.floating
    return stats.abs_max > MASKED and stats.mean < 0 < stats.zero_share and call.output.floating


def _masked(call: Call, x: Side, mask: Side) -> MomentMap:
    """Logits plus a mask of zeros and huge negative numbers."""
    stats = None if mask[0] is None else call.value(mask[0]).forward
    shown = 1.0 if stats is None else stats.zero_share
    signal = replace(fitted(x[1], call.output.shape), valid=shown or None)
    value = x[0]
    return one(signal, lambda grads: {} if value is None else {value: returned(grads[0], x[1])})


@moment_rule(assumes="factors of different sources are independent")
def multiply(call: Call) -> MomentMap:
    r"""$y = x_1 x_2$: $E[y^2] = q_1 q_2$ if independent; by quadrature if both are functions of one source.

    $g_1 = x_2\,g_y$ has the second moment $q_2\,g_y^2$, summed where $x_1$ was expanded. A factor that averages itself
    (the scale of a norm) is a number. A quotient is the product with $1/x_2$.
    """
    left, right = _side(call, 0), _side(call, 1)
    if left is None or right is None:
        raise UnpredictableError(f"nothing is known of what {call.op.name} reads")
    if call.op.callable.endswith(("rdiv__", "rtruediv__")):
        left, right = right, left
    if call.op.name == "div":
        if not right[1].tight:
            if left[1].key == right[1].key or left[1].tight:
                return apply_pointwise(call)
            raise UnpredictableError("a quotient of independent tensors")
        if right[1].field.mean == 0:
            raise UnpredictableError("a quotient by zero")
    if left[1].tight and right[1].tight:
        return _numbers(call, left, right)
    if left[1].tight or right[1].tight:
        return _scaled(call, left, right)
    if left[1].key == right[1].key:
        return apply_pointwise(call)
    return _product(call, (_known(left[0]), left[1]), (_known(right[0]), right[1]))


def _known(value: int | None) -> int:
    if value is None:  # a number is tight, and products of numbers do not come here
        raise UnpredictableError("a product with no tensor")
    return value


def _inverse(call: Call, factor: float) -> float:
    return 1 / factor if call.op.name == "div" else factor


def _scaled(call: Call, left: Side, right: Side) -> MomentMap:
    """A tensor times a number, or times a tensor that averages itself."""
    (value, x), (number_id, by) = (right, left) if left[1].tight else (left, right)
    factor = _inverse(call, by.field.mean)
    shape = call.output.shape
    out = _times(fitted(x, shape), factor)
    if by.origin == x.key and x.key >= 0:  # divided by a mean of its own function: a norm
        out = replace(out, exact=True, noise=0.0)

    def back(grads: Sequence[Terms]) -> Mapping[int, Terms]:
        found = {_known(value): returned(weighted(grads[0], factor), x)}
        if number_id is not None:
            g = total(grads[0], out)
            steep = factor**2 if call.op.name == "div" else 1.0
            through = scaled(product(g, broadcast(x.field, shape)), steep)
            found[number_id] = fresh(unbroadcast(through, by.field.shape))
        return found

    return one(out, back)


def _numbers(call: Call, left: Side, right: Side) -> MomentMap:
    a, b = left[1].field.mean, _inverse(call, right[1].field.mean)
    shape = call.output.shape
    wide = broadcast(left[1].field, shape)
    out = replace(left[1], field=scaled(wide, b), key=-1, noise=max(left[1].noise, right[1].noise))
    steep = a if call.op.name == "mul" else -a * b * b

    def back(grads: Sequence[Terms]) -> Mapping[int, Terms]:
        sides = ((left, b), (right, steep))
        return {
            value: returned(weighted(grads[0], factor), signal)
            for (value, signal), factor in sides
            if value is not None
        }

    return one(out, back)


def _product(call: Call, left: tuple[int, Signal], right: tuple[int, Signal]) -> MomentMap:
    shape = call.output.shape
    (value_a, a), (value_b, b) = left, right
    wide_a, wide_b = fitted(a, shape), fitted(b, shape)
    parts = {a.key: slope_of(a) * b.field.mean, b.key: slope_of(b) * a.field.mean}
    out = call.sources.gaussian(product(wide_a.field, wide_b.field), a.noise + b.noise, parts)

    def back(grads: Sequence[Terms]) -> Mapping[int, Terms]:
        g = total(grads[0], out)
        return {
            value_a: fresh(unbroadcast(product(g, wide_b.field), a.field.shape)),
            value_b: fresh(unbroadcast(product(g, wide_a.field), b.field.shape)),
        }

    return one(out, back)


@moment_rule()
def negative(call: Call) -> MomentMap:
    """$y = -x$."""
    value, x = call.read()
    return one(_times(x, -1.0), lambda grads: {value: weighted(grads[0], -1.0)})


@moment_rule(assumes="the elements are Gaussian")
def composite(call: Call) -> MomentMap:
    """Where all operands are numbers or functions of one source, by quadrature."""
    operands(call)
    return apply_pointwise(call)
