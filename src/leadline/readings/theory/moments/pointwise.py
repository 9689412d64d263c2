"""Moment rules of functions of single elements: activations, and the arithmetic that activations and norms use."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from msgspec.structs import replace
from torch import Tensor

from leadline.ops.arguments import value_of
from leadline.readings.theory import quadrature
from leadline.readings.theory.field import (
    RandomField,
    broadcast,
    constant,
    profile_of,
    reweighted,
    spread_within,
    unbroadcast,
)
from leadline.readings.theory.gradient import Terms, gradient_field, new_noise, weighted
from leadline.readings.theory.moment_rule import (
    Call,
    MomentMap,
    UnpredictableError,
    moment_rule,
    single_output,
)
from leadline.readings.theory.position_profile import MIN_WEIGHT, PositionProfile, normalized_profile
from leadline.readings.theory.signal import MIN_RELATIVE_VARIANCE, Signal, nodes_of, source_field
from leadline.records import Op

# Heuristic: masks fill logits with this or more, so that softmax drops them; above any logit, below 65504 (float16).
MIN_MASK_VALUE = 1e4


def operands(call: Call) -> dict[int, Signal]:
    """Signals of the tensors among the arguments, by value id; raises `UnpredictableError` if one is unknown."""
    values = [value_of(each) for each in (*call.op.args, *call.op.kwargs.values())]
    tensors = [value for value in values if value is not None and call.value(value).dtype != "bool"]
    if any(value not in call.signals for value in tensors):
        raise UnpredictableError(f"nothing is known about the input of {call.op.name}")
    return {value: call.signals[value] for value in tensors}


def apply_pointwise(call: Call) -> MomentMap:
    r"""$y = f(x)$ with $x = x(z)$, $z \sim N(0, 1)$: apply the recorded op to the quadrature nodes of $z$.

    $$ E[y] = \int f(x(z))\,Dz, \quad E[y^2] = \int f(x(z))^2\,Dz, \quad
       E[y y'] = \sum_k a_k^2 \rho^k, \quad a_k = \int f(x(z))\,h_k(z)\,Dz $$
    with $h_k$ the normalized Hermite polynomials and $\rho$ the correlation of the $z$ of neighbors. Gradients:
    $g_x = f'(x(z))\,g_y$, as a function of $z$. Several operands must be functions of the same source, or constants.
    """
    given = operands(call)
    live = {value: signal for value, signal in given.items() if not signal.deterministic}
    if len({signal.key for signal in live.values()}) > 1:
        raise UnpredictableError(f"{call.op.name} of tensors with different sources")
    shape = call.output.shape
    if not live:
        return _of_constants(call, given, shape)
    first = next(iter(live.values()))
    points: dict[int, Tensor] = {
        value: nodes_of(signal) if value in live else torch.full_like(nodes_of(first), signal.field.mean)
        for value, signal in given.items()
    }
    source = broadcast(source_field(first), shape)
    out = call.sources.function(replay(call.op, points), first, source)
    if out is None:
        raise UnpredictableError(f"{call.op.name} is not finite for most of its input")

    def back(grads: Sequence[Terms]) -> Mapping[int, Terms]:
        derivatives = slopes(call.op, points)
        return {value: pulled_back(weighted(grads[0], derivatives[value]), given[value]) for value in given}

    return single_output(out, back)


def pulled_back(terms: Terms, signal: Signal) -> Terms:
    """The terms in the axes of the tensor they belong to; where it was expanded, they add up to a new noise.

    The gradient of a constant (the scale of a norm) is no longer a function of the source.
    """
    if not terms or terms[0].field.shape == signal.field.shape:
        return terms
    wide = Signal(field=terms[0].field, key=-1)
    expanded = replace(wide, source=broadcast(source_field(signal), terms[0].field.shape))
    return new_noise(unbroadcast(gradient_field(terms, expanded), signal.field.shape))


def _of_constants(call: Call, given: Mapping[int, Signal], shape: tuple[int, ...]) -> MomentMap:
    r"""The moments of a function $f$ of deterministic tensors.

    The mean is $f(\bar m)$. The variance is $f'(\bar m)^2\,\mathrm{Var}(m)$, and larger if $f$ is curved.

    A positive $m$ is taken to be log-normal with its mean and variance: $E[f(m)^2]$ and the factor $E[f'(m)^2]$ of the
    gradient are integrals over it. For the scale of a norm, $E[1/v]$ exceeds $1/E[v]$. Its gradient is inverse to it,
    which makes the factor $E[(f'/f)^2]/E[1/f^2]$.
    """
    points = {
        value: torch.full((1,), signal.field.mean, dtype=torch.float64, device="cpu")
        for value, signal in given.items()
    }
    mean = float(replay(call.op, points))
    slope = {value: float(each) for value, each in slopes(call.op, points).items()}
    field = constant(shape, mean)
    slope_profile: PositionProfile | None = None
    relative = 1.0
    if len(given) == 1:
        (value, signal), *_ = given.items()
        old, square = broadcast(signal.field, shape), slope[value] ** 2
        spread, at_mean = spread_within(old), slope[value]
        ms = mean**2 + square * spread * old.mean**2 if old.mean else old.ms * square + mean**2
        if signal.field.mean > 0 and spread > MIN_RELATIVE_VARIANCE:
            bent, slope[value], relative = _log_normal(call, value, signal.field.mean, spread, (ms, at_mean))
            square *= (bent - mean**2) / (ms - mean**2) if ms > mean**2 else 1.0
            ms = bent
        share = tuple(mean**2 + square * max(each - old.mean**2, 0.0) for each in old.share)
        field = RandomField(shape=shape, mean=mean, ms=ms, share=share)
        along = profile_of(old)
        if along is not None:
            field, slope[value], slope_profile = _uneven_constant(
                call, value, field, along, signal.field.mean, (at_mean, slope[value])
            )
    noise = max((signal.noise for signal in given.values()), default=0.0)

    def back(grads: Sequence[Terms]) -> Mapping[int, Terms]:
        terms = tuple(
            replace(
                term,
                field=reweighted(term.field, slope_profile),
                weight=term.weight * relative if term.relative else term.weight,
            )
            for term in grads[0]
        )
        return {value: pulled_back(weighted(terms, slope[value]), given[value]) for value in given}

    origin = next((signal.origin for signal in given.values() if signal.origin >= 0), -1)
    return single_output(Signal(field=field, key=-1, deterministic=True, noise=noise, origin=origin), back)


def _uneven_constant(
    call: Call,
    value: int,
    field: RandomField,
    along: PositionProfile,
    mean: float,
    slope: tuple[float, float],
) -> tuple[RandomField, float, PositionProfile | None]:
    """The field and the slope of a function of a constant that differs along an axis, and the profile of the slope.

    `slope` is the one at the mean, and that with the variance of each position.
    """
    roots = torch.tensor(along.weights, dtype=torch.float64, device="cpu").clamp_min(MIN_WEIGHT).sqrt()
    points = {value: mean * roots / roots.mean()}
    values, steep = replay(call.op, points), slopes(call.op, points)[value]
    size, profile = normalized_profile(along.axis, values.square().tolist())
    slope_size, slope_profile = normalized_profile(along.axis, steep.square().tolist())
    if not math.isfinite(size) or not math.isfinite(slope_size) or field.mean == 0 or slope[0] == 0:
        return field, slope[1], None
    stretch = size / field.mean**2
    wide = RandomField(
        shape=field.shape,
        mean=math.copysign(math.sqrt(size), field.mean),
        ms=field.ms * stretch,
        share=tuple(each * stretch for each in field.share),
        profile=profile,
    )
    return wide, slope[1] * math.sqrt(slope_size) / abs(slope[0]), slope_profile


def _log_normal(
    call: Call, value: int, mean: float, spread: float, first_order: tuple[float, float]
) -> tuple[float, float, float]:
    """The second moment and the root mean square slope over a log-normal operand; at least the first-order ones.

    The third number is the factor of the slope for gradients that are inverse to the result.
    """
    log_variance = math.log1p(spread)
    z = quadrature.nodes()
    points = {value: mean * torch.exp(math.sqrt(log_variance) * z - log_variance / 2)}
    ms, slope = first_order
    result, derivative = replay(call.op, points), slopes(call.op, points)[value]
    bent, steep = quadrature.moments(result)[1], quadrature.moments(derivative)[1]
    if not math.isfinite(bent) or not math.isfinite(steep):
        return ms, slope, 1.0
    inverse = quadrature.moments(1 / result)[1]
    ratio = quadrature.moments(derivative / result)[1] / (inverse * steep) if steep > 0 else 1.0
    return (
        max(bent, ms),
        math.copysign(math.sqrt(max(steep, 0.0)), slope),
        math.sqrt(ratio) if math.isfinite(ratio) else 1.0,
    )


def _masked(call: Call, x: Signal, value: int, visible_share: float) -> MomentMap:
    """Logits of which softmax sees only a share; their field is that of the visible ones."""
    return single_output(replace(x, visible_share=visible_share), lambda grads: {value: tuple(grads[0])})


@moment_rule(assumes="the elements are Gaussian")
def pointwise(call: Call) -> MomentMap:
    """A function of single elements, integrated over the source of its operand (see `apply_pointwise`)."""
    return apply_pointwise(call)


@moment_rule(assumes="masks hide later positions, or nothing")
def mask(call: Call) -> MomentMap:
    """`where` and `masked_fill` with a huge number, which hide logits from a softmax; other fills are not predicted."""
    filler = call.argument("value", 2) if call.op.name == "masked_fill" else call.argument("other", 2)
    tensors = [value for value in call.op.inputs if call.value(value).dtype != "bool"]
    known = [value for value in tensors if value in call.signals]
    live = [value for value in known if not call.signals[value].deterministic]
    if len(live) != 1:
        raise UnpredictableError(f"{call.op.name} of tensors with different sources")
    number = filler if isinstance(filler, int | float) else None
    if number is None:
        others = [call.signals[value].field.mean for value in known if value not in live]
        number = others[0] if others else None
    if number is None or abs(number) >= MIN_MASK_VALUE:
        return _masked(call, call.signals[live[0]], live[0], mask_visible_share(call))
    raise UnpredictableError(f"{call.op.name} under a mask of unknown extent")


def mask_visible_share(call: Call) -> float:
    """The visible share of a boolean mask, which is not measured: a causal one hides half, others hide nothing."""
    columns = call.output.shape[-1]
    return (columns + 1) / (2 * columns) if call.causal.intersection(call.op.inputs) else 1.0


@moment_rule(assumes="the other operand is a floor for masked logits")
def extreme(call: Call) -> MomentMap:
    """The elementwise extreme of a tensor and a number far beyond its values, which is the tensor itself."""
    signals = operands(call)
    live = {value: signal for value, signal in signals.items() if not signal.deterministic}
    floors = [abs(signal.field.mean) for signal in signals.values() if signal.deterministic]
    if len(live) != 1 or not floors or floors[0] < MIN_MASK_VALUE:
        raise UnpredictableError(f"{call.op.name} over an axis, or of two tensors")
    (value, x), *_ = live.items()
    return single_output(x, lambda grads: {value: tuple(grads[0])})


@moment_rule(assumes="the elements are Gaussian")
def prelu(call: Call) -> MomentMap:
    r"""$y = \max(x, 0) + a \min(x, 0)$ with learned slopes $a$ (0.25 at the start), or random ones.

    As a function of $x$ it has the slope $\sqrt{E[a^2]}$, with $E[a^2] = (l^2 + lu + u^2)/3$ for $a \sim U(l, u)$.
    """
    value, x = call.read()
    slope = _negative_slope(call)
    source, points = source_field(x), nodes_of(x)
    out = call.sources.function(torch.where(points > 0, points, slope * points), x, source)
    slopes_at = torch.where(points > 0, 1.0, slope).to(points.dtype)
    return single_output(out, lambda grads: {value: weighted(grads[0], slopes_at)})


def _negative_slope(call: Call) -> float:
    if call.op.name == "prelu":
        slope = call.signal("weight", 1)
        if slope is None:
            raise UnpredictableError("nothing is known about the slopes")
        return float(slope.field.ms**0.5) if slope.field.mean >= 0 else slope.field.mean
    low, high = float(call.argument("lower", 1, 1 / 8)), float(call.argument("upper", 2, 1 / 3))
    is_random = bool(call.argument("training", 3))
    return float(((low**2 + low * high + high**2) / 3) ** 0.5) if is_random else (low + high) / 2


# Recorded ops applied to quadrature nodes instead of tensors.

_REFLECTED = ("__rpow__", "__rdiv__", "__rtruediv__", "__rfloordiv__", "__rmod__")
_IGNORED_KEYWORDS = frozenset(
    {"inplace", "out", "dtype", "device", "memory_format", "non_blocking", "copy", "training"}
)
_NON_FINITE = {"Infinity": float("inf"), "-Infinity": float("-inf"), "NaN": float("nan")}


@cache
def function_of(name: str) -> Callable[..., Tensor] | None:
    """The torch function of a canonical op name; None if there is none."""
    for home in (F, torch, torch.special, Tensor):
        function: Callable[..., Tensor] | None = getattr(home, name, None)
        if function is not None:
            return function
    return None


def replay(op: Op, given: Mapping[int, Tensor | float]) -> Tensor:
    """The recorded op applied to `given` in place of its tensors (by value id), with its recorded literals."""
    function = function_of(op.name)
    if function is None:
        raise LookupError(op.name)
    args = [_literal(each, given) for each in op.args]
    if op.callable.endswith(_REFLECTED):
        args.reverse()
    kwargs = {key: _literal(each, given) for key, each in op.kwargs.items() if key not in _IGNORED_KEYWORDS}
    return function(*_tensors_first(args), **kwargs).to(torch.float64)


def slopes(op: Op, given: Mapping[int, Tensor]) -> dict[int, Tensor]:
    """The derivative of the op with respect to each of its tensors, at the nodes."""
    with torch.enable_grad():
        leaves = {value: each.detach().clone().requires_grad_() for value, each in given.items()}
        result = replay(op, leaves)
        if not result.requires_grad:
            return {value: torch.zeros_like(each) for value, each in given.items()}
        grads = torch.autograd.grad(result.sum(), list(leaves.values()), allow_unused=True)
    return {
        value: torch.zeros_like(each) if grad is None else torch.nan_to_num(grad)
        for (value, each), grad in zip(given.items(), grads, strict=True)
    }


def _literal(recorded: Any, given: Mapping[int, Tensor | float]) -> Any:
    value = value_of(recorded)
    if value is not None:
        return given[value]
    return _NON_FINITE.get(recorded, recorded) if isinstance(recorded, str) else recorded


def _tensors_first(args: list[Any]) -> list[Any]:
    """A number in the first place becomes a tensor, which functions such as `pow` and `where` require."""
    if args and not isinstance(args[0], Tensor) and isinstance(args[0], float | int):
        return [torch.tensor(float(args[0]), dtype=torch.float64, device="cpu"), *args[1:]]
    return args
