"""Moment rules of sums and products: of constants, of functions of one source, and of independent tensors."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from leadline.ops.arguments import value_of
from leadline.readings.theory.field import (
    RandomField,
    broadcast,
    product,
    profile_of,
    reweighted,
    scaled,
    sum_profile,
    unbroadcast,
)
from leadline.readings.theory.gradient import (
    Terms,
    gradient_field,
    new_noise,
    new_radial_noise,
    radial_part,
    radial_ratio,
    weighted,
)
from leadline.readings.theory.moment_rule import (
    Call,
    MomentMap,
    UnpredictableError,
    expanded,
    moment_rule,
    single_output,
)
from leadline.readings.theory.moments.pointwise import MIN_MASK_VALUE, apply_pointwise, operands, pulled_back
from leadline.readings.theory.position_profile import raised
from leadline.readings.theory.signal import Signal, constant_signal, slope_of, unsteady_share

# Derived: the mean of a sum of n elements is n times their mean, up to rounding.
MAX_SUM_ERROR = 1e-6

# Derived: neighbors with a larger correlation are copies of each other up to rounding.
MIN_COPY_CORRELATION = 1 - 1e-9


@moment_rule(assumes="branches are independent, except for their means and for common sources")
def add(call: Call) -> MomentMap:
    r"""$y = a x_1 + b x_2$ with covariance $C$ of the two:

    $$ E[y^2] = a^2 q_1 + b^2 q_2 + 2ab(\mu_1\mu_2 + C) $$
    $C$ is exact where both are functions of one source or sums of the same sources, else 0: a branch that ends in its
    own weights is independent of the skip. The gradient passes to both.
    """
    left, right = _side(call, 0), _side(call, 1)
    alpha = float(call.argument("alpha", 2, 1) or 1)
    factors = {"add": (1.0, alpha), "sub": (1.0, -alpha), "rsub": (-alpha, 1.0)}[call.op.name]
    if left is None or right is None:
        raise UnpredictableError(f"nothing is known about the input of {call.op.name}")
    for one_side, other in ((left, right), (right, left)):
        if _is_mask(call, other):
            return _masked(call, one_side, other)
    shape = call.output.shape
    a, b = (
        scale_signal(expanded(left[1], shape), factors[0]),
        scale_signal(expanded(right[1], shape), factors[1]),
    )
    if a.key == b.key and a.key >= 0 and (a.nodes is not None or b.nodes is not None):
        return apply_pointwise(call)
    out = add_signals(call, a, b)

    def back(grads: Sequence[Terms]) -> Mapping[int, Terms]:
        same_source = out.key in (a.key, b.key) and out.key >= 0
        sides = (grads[0], grads[0]) if same_source else _divided(call, grads[0], out, a, b)
        contributions: dict[int, Terms] = {}
        for (value, signal), factor, terms in zip((left, right), factors, sides, strict=True):
            if value is not None:
                own = pulled_back(weighted(terms, factor), signal)
                contributions[value] = (*contributions.get(value, ()), *own)
        return contributions

    return single_output(out, back)


def _divided(call: Call, terms: Terms, out: Signal, a: Signal, b: Signal) -> tuple[Terms, Terms]:
    r"""The gradient of $y = a + b$ for both terms: equal noise, and the part of its sum along each term.

    $\sum g a = \frac{E[ay]}{E[y^2]} \sum g y + r$ and $\sum g b = \frac{E[by]}{E[y^2]} \sum g y - r$ with the same
    independent rest $r$.
    """
    noise = new_noise(gradient_field(terms, out))
    g, ms = noise[0].field.ms, out.field.ms
    if g <= 0 or ms <= 0:
        return noise, noise
    along = {part: size / math.sqrt(g * ms) for part, size in radial_part(terms, out).items()}
    cross = a.field.mean * b.field.mean + call.sources.covariance(a, b)
    rest = max(a.field.ms - (a.field.ms + cross) ** 2 / ms, 0.0)
    sides = []
    for x, sign in ((a, 1.0), (b, -1.0)):
        if x.field.ms <= 0:
            sides.append(noise)
            continue
        share = (x.field.ms + cross) / math.sqrt(ms * x.field.ms)
        radial = {part: share * size for part, size in along.items()}
        radial[-1 - noise[0].noise] = sign * math.sqrt(rest / x.field.ms)
        sides.append((replace(noise[0], anchor=x, radial=radial),))
    return sides[0], sides[1]


Side = tuple[int | None, Signal]


def _side(call: Call, position: int) -> Side | None:
    """An operand: the id and signal of a tensor, or None and the signal of a number."""
    argument = call.argument(("input", "other")[position], position)
    if isinstance(argument, int | float) and not isinstance(argument, bool):
        return None, constant_signal((), float(argument))
    value = value_of(argument)
    signal = None if value is None else call.signals.get(value)
    return None if signal is None else (value, signal)


def scale_signal(x: Signal, factor: float) -> Signal:
    if factor == 1.0:
        return x
    nodes = None if x.nodes is None else x.nodes * factor
    return replace(
        x,
        field=scaled(x.field, factor),
        slope=x.slope * factor,
        nodes=nodes,
        steady_ms=x.steady_ms * factor**2,
    )


def add_signals(call: Call, a: Signal, b: Signal) -> Signal:
    if a.deterministic or b.deterministic:
        # the mean of a norm plus its epsilon keeps its variance and its origin
        b_moves = a.deterministic and not (b.deterministic and b.field.var < a.field.var)
        return _shifted(b, a) if b_moves else _shifted(a, b)
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
    steady = sum(each.field.ms if each.exact else each.steady_ms for each in (a, b))
    return replace(call.sources.gaussian(field, noise, parts), steady_ms=steady)


def _noise_of_sum(a: Signal, b: Signal) -> float:
    """The noise of a sum: that of two terms, weighted by their squared shares of the sum."""
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
        profile=sum_profile([a.field, b.field]),
    )


def _alike(x: float, y: float) -> float:
    """The share of a covariance that neighbors have too: all of it where one side is equal for all of them."""
    return 1.0 if max(x, y) > MIN_COPY_CORRELATION else math.sqrt(max(x * y, 0.0))


def _shifted(x: Signal, by: Signal) -> Signal:
    """A constant added to a function of a source, or to a constant."""
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
    """Whether an operand is a mask of zeros and huge negative numbers; huge positive ones are no mask."""
    value, signal = side
    if value is None:
        return False
    stats = call.value(value).forward
    if stats is None:
        return signal.field.mean <= -MIN_MASK_VALUE and call.output.floating
    return stats.abs_max >= MIN_MASK_VALUE and stats.mean < 0 < stats.zero_share and call.output.floating


def _masked(call: Call, x: Side, mask: Side) -> MomentMap:
    """Logits plus a mask of zeros and huge negative numbers."""
    stats = None if mask[0] is None else call.value(mask[0]).forward
    shown = 1.0 if stats is None else stats.zero_share
    signal = replace(expanded(x[1], call.output.shape), visible_share=shown or None)
    value = x[0]
    return single_output(signal, lambda grads: {} if value is None else {value: pulled_back(grads[0], x[1])})


@moment_rule(assumes="factors of different sources are independent")
def multiply(call: Call) -> MomentMap:
    r"""$y = x_1 x_2$: $E[y^2] = q_1 q_2$ if independent; by quadrature if both are functions of one source.

    $g_1 = x_2\,g_y$ has the second moment $q_2\,g_y^2$, summed where $x_1$ was expanded. A deterministic factor (the
    scale of a norm) is a constant. A quotient is the product with $1/x_2$.
    """
    left, right = _side(call, 0), _side(call, 1)
    if left is None or right is None:
        raise UnpredictableError(f"nothing is known about the input of {call.op.name}")
    if call.op.callable.endswith(("rdiv__", "rtruediv__")):
        left, right = right, left
    if call.op.name == "div":
        if not right[1].deterministic:
            if left[1].key == right[1].key or left[1].deterministic:
                return apply_pointwise(call)
            raise UnpredictableError("a quotient of independent tensors")
        if right[1].field.mean == 0:
            raise UnpredictableError("a quotient by zero")
    if left[1].deterministic and right[1].deterministic:
        return _constants(call, left, right)
    if left[1].deterministic or right[1].deterministic:
        return _scaled(call, left, right)
    if left[1].key == right[1].key:
        return apply_pointwise(call)
    return _product(call, (_known(left[0]), left[1]), (_known(right[0]), right[1]))


def _known(value: int | None) -> int:
    if value is None:  # a number is deterministic, and `_constants` handles products of numbers
        raise UnpredictableError("a product without a tensor")
    return value


def _inverse(call: Call, factor: float) -> float:
    return 1 / factor if call.op.name == "div" else factor


def _scaled(call: Call, left: Side, right: Side) -> MomentMap:
    """A tensor times a constant, or times a deterministic tensor."""
    (value, x), (number_id, by) = (right, left) if left[1].deterministic else (left, right)
    factor = _inverse(call, by.field.mean)
    shape = call.output.shape
    wide, by_profile = expanded(x, shape), profile_of(broadcast(by.field, shape))
    if call.op.name == "div":
        by_profile = raised(by_profile, -1.0)[1]
    out = scale_signal(wide, factor)
    if by_profile is not None:
        field = reweighted(out.field, by_profile)
        out = replace(
            scale_signal(out, math.sqrt(field.ms / out.field.ms) if out.field.ms else 1.0), field=field
        )
    is_norm = by.origin == x.key and x.key >= 0  # divided by a mean of a function of itself
    if is_norm:
        out = replace(out, exact=True, noise=0.0)
    over_features = len(shape) > 0 and shape[-1] > 1 and by.field.shape[-1:] == (1,)

    def back(grads: Sequence[Terms]) -> Mapping[int, Terms]:
        own = tuple(replace(term, field=reweighted(term.field, by_profile)) for term in grads[0])
        contributions = {_known(value): pulled_back(weighted(own, factor), x)}
        if number_id is None:
            return contributions
        g = gradient_field(grads[0], out)
        slope = factor**2 if call.op.name == "div" else 1.0
        through = scaled(product(g, broadcast(x.field, shape)), slope)
        if over_features:
            radial = radial_part(grads[0], out)
            ratio = radial_ratio(radial, g, out)
            through = scaled(through, math.sqrt(ratio))
            if is_norm and x.field.shape == shape:
                uneven = g if by.field.mean == 0 else scaled(g, math.sqrt(_mean_square_factor(call, x, by)))
                contributions[_known(value)] = _without_scale(
                    x, reweighted(uneven, by_profile), factor, radial, ratio
                )
        through = unbroadcast(through, by.field.shape)
        contributions[number_id] = _gradient_of_scale(through, by) if is_norm else new_noise(through)
        return contributions

    return single_output(out, back)


def _gradient_of_scale(field: RandomField, scale: Signal) -> Terms:
    r"""The gradient of the factor $r$ of a norm $y = r x$, where $g_r r = \sum g y$ does not depend on $r$.

    The part along $x$ of a norm's two paths is counted in the first (see `_without_scale`).
    """
    return tuple(replace(term, relative=True) for term in new_radial_noise(field, scale, {}))


def _mean_square_factor(call: Call, x: Signal, by: Signal) -> float:
    """The mean square of the factor of a norm compared with the square at the mean: small tensors count more."""
    spread = unsteady_share(x) * max(by.field.ms / by.field.mean**2 - 1, 0.0)
    return 1 + (3 * spread if call.op.name == "div" else spread)


def _without_scale(
    x: Signal, g: RandomField, factor: float, radial: Mapping[int, float], ratio: float
) -> Terms:
    r"""The gradient of $x$ through $y = x/\sqrt{v + \epsilon}$ beside that through $v$, minus its part along $x$.

    The two are added as independent noises although the second removes what the first has along $x$: with
    $\kappa$ the `ratio` of that part, the first is counted with $1 - 2\kappa s/n$ and the sum has $1 - \kappa s/n$.
    Here $s = v/(v + \epsilon)$, and $1 - s$ is left of the derivative with respect to the scale.
    """
    n = x.field.shape[-1]
    if abs(n * x.field.mean * factor - 1) < MAX_SUM_ERROR:  # divided by the sum of its elements
        return new_radial_noise(scaled(g, factor * math.sqrt(max(1 - 2 / n, 0.0))), x, {})
    part = min(x.field.ms * factor**2, 1.0)
    left = max(1 - 2 * ratio * part / n, 0.0)
    return new_radial_noise(scaled(g, factor * math.sqrt(left)), x, radial, (1 - part))


def _constants(call: Call, left: Side, right: Side) -> MomentMap:
    a, b = left[1].field.mean, _inverse(call, right[1].field.mean)
    shape = call.output.shape
    wide = broadcast(left[1].field, shape)
    out = replace(left[1], field=scaled(wide, b), key=-1, noise=max(left[1].noise, right[1].noise))
    slope = a if call.op.name == "mul" else -a * b * b

    def back(grads: Sequence[Terms]) -> Mapping[int, Terms]:
        sides = ((left, b), (right, slope))
        return {
            value: pulled_back(weighted(grads[0], factor), signal)
            for (value, signal), factor in sides
            if value is not None
        }

    return single_output(out, back)


def _product(call: Call, left: tuple[int, Signal], right: tuple[int, Signal]) -> MomentMap:
    shape = call.output.shape
    (value_a, a), (value_b, b) = left, right
    wide_a, wide_b = expanded(a, shape), expanded(b, shape)
    parts = {a.key: slope_of(a) * b.field.mean, b.key: slope_of(b) * a.field.mean}
    out = call.sources.gaussian(product(wide_a.field, wide_b.field), a.noise + b.noise, parts)

    def back(grads: Sequence[Terms]) -> Mapping[int, Terms]:
        g = gradient_field(grads[0], out)
        radial = radial_part(grads[0], out)
        gradients: dict[int, Terms] = {}
        for value, x, other in ((value_a, a, wide_b), (value_b, b, wide_a)):
            field = unbroadcast(product(g, other.field), x.field.shape)
            # sum g_a a = sum g_y y = sum g_b b
            gradients[value] = (
                new_radial_noise(field, x, radial) if x.field.shape == shape else new_noise(field)
            )
        return gradients

    return single_output(out, back)


@moment_rule()
def negative(call: Call) -> MomentMap:
    """$y = -x$."""
    value, x = call.read()
    return single_output(scale_signal(x, -1.0), lambda grads: {value: weighted(grads[0], -1.0)})


@moment_rule(assumes="the elements are Gaussian")
def composite(call: Call) -> MomentMap:
    """By quadrature, where all operands are constants or functions of one source."""
    operands(call)
    return apply_pointwise(call)
