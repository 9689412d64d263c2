"""Functions of single elements: activations, and the arithmetic that models spell activations and norms with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from msgspec.structs import replace
from torch import Tensor

from leadline.ops.arguments import value_of
from leadline.readings.theory.field import RandomField, broadcast, constant, unbroadcast
from leadline.readings.theory.gradient import Terms, fresh, total, weighted
from leadline.readings.theory.moment_rule import Call, MomentMap, UnpredictableError, moment_rule, one
from leadline.readings.theory.replay import replay, slopes
from leadline.readings.theory.signal import Signal, nodes_of, standardised

MASKED = 1e4  # what is filled into logits so that softmax drops them; above any logit, below float16's 65504


def operands(call: Call) -> dict[int, Signal]:
    """The tensors among the arguments, by value id; all must be known."""
    wanted = [
        value
        for each in (*call.op.args, *call.op.kwargs.values())
        if (value := value_of(each)) is not None and call.value(value).dtype != "bool"
    ]
    found = {value: call.signals[value] for value in wanted if value in call.signals}
    if len(found) < len(set(wanted)):
        raise UnpredictableError(f"nothing is known of what {call.op.name} reads")
    return found


def apply_pointwise(call: Call) -> MomentMap:
    r"""$y = f(x)$ with $x = x(z)$, $z \sim N(0, 1)$: push the quadrature nodes of $z$ through the recorded op.

    $$ E[y] = \int f(x(z))\,Dz, \quad E[y^2] = \int f(x(z))^2\,Dz, \quad
       E[y y'] = \sum_k a_k^2 \rho^k, \quad a_k = \int f(x(z))\,h_k(z)\,Dz $$
    with $h_k$ the normalised Hermite polynomials and $\rho$ the correlation of neighbours' $z$. Gradients:
    $g_x = f'(x(z))\,g_y$, kept as a function of $z$. Several operands must be functions of the same source, or
    numbers.
    """
    given = operands(call)
    live = {value: signal for value, signal in given.items() if not signal.tight}
    if len({signal.key for signal in live.values()}) > 1:
        raise UnpredictableError(f"{call.op.name} of tensors of different sources")
    shape = call.output.shape
    if not live:
        return _of_numbers(call, given, shape)
    first = next(iter(live.values()))
    points: dict[int, Tensor] = {
        value: nodes_of(signal) if value in live else torch.full_like(nodes_of(first), signal.field.mean)
        for value, signal in given.items()
    }
    source = broadcast(standardised(first), shape)
    out = call.sources.function(replay(call.op, points), first, source)
    if out is None:
        raise UnpredictableError(f"{call.op.name} is no number for most of what it reads")

    def back(grads: Sequence[Terms]) -> Mapping[int, Terms]:
        found = slopes(call.op, points)
        return {value: returned(weighted(grads[0], found[value]), given[value]) for value in given}

    return one(out, back)


def returned(terms: Terms, signal: Signal) -> Terms:
    """The terms in the axes of the tensor they belong to; where it was expanded, they add up to new noise.

    The gradient of a number (a norm's scale) forgets which function of the source it was.
    """
    if not terms or terms[0].field.shape == signal.field.shape:
        return terms
    wide = Signal(field=terms[0].field, key=-1)
    expanded = replace(wide, source=broadcast(standardised(signal), terms[0].field.shape))
    return fresh(unbroadcast(total(terms, expanded), signal.field.shape))


def _of_numbers(call: Call, given: Mapping[int, Signal], shape: tuple[int, ...]) -> MomentMap:
    r"""Of tensors as good as numbers, to first order: $f(\bar m)$, with variance $f'(\bar m)^2\,\mathrm{Var}(m)$."""
    points = {
        value: torch.full((1,), signal.field.mean, dtype=torch.float64, device="cpu")
        for value, signal in given.items()
    }
    mean = float(replay(call.op, points))
    slope = {value: float(each) for value, each in slopes(call.op, points).items()}
    field = constant(shape, mean)
    if len(given) == 1:
        (value, signal), *_ = given.items()
        old, square = broadcast(signal.field, shape), slope[value] ** 2
        share = tuple(mean**2 + square * max(each - old.mean**2, 0.0) for each in old.share)
        field = RandomField(shape=shape, mean=mean, ms=mean**2 + square * old.var, share=share)
    noise = max((signal.noise for signal in given.values()), default=0.0)

    def back(grads: Sequence[Terms]) -> Mapping[int, Terms]:
        return {value: returned(weighted(grads[0], slope[value]), given[value]) for value in given}

    origin = next((signal.origin for signal in given.values() if signal.origin >= 0), -1)
    return one(Signal(field=field, key=-1, tight=True, noise=noise, origin=origin), back)


def masked(call: Call, x: Signal, value: int, valid: float) -> MomentMap:
    """Logits of which softmax will see a share only; their field is that of the rest."""
    return one(replace(x, valid=valid), lambda grads: {value: tuple(grads[0])})


@moment_rule(assumes="the elements are Gaussian")
def pointwise(call: Call) -> MomentMap:
    """A function of single elements, integrated over the source of its operand (see `apply_pointwise`)."""
    return apply_pointwise(call)


@moment_rule(assumes="masks hide what comes later, or nothing")
def mask(call: Call) -> MomentMap:
    """`where` and `masked_fill` with a huge number drop elements from a softmax; with 0 they thin the tensor out."""
    filler = call.argument("value", 2) if call.op.name == "masked_fill" else call.argument("other", 2)
    tensors = [value for value in call.op.inputs if call.value(value).dtype != "bool"]
    known = [value for value in tensors if value in call.signals]
    live = [value for value in known if not call.signals[value].tight]
    if len(live) != 1:
        raise UnpredictableError(f"{call.op.name} between tensors of different sources")
    number = filler if isinstance(filler, int | float) else None
    if number is None:
        others = [call.signals[value].field.mean for value in known if value not in live]
        number = others[0] if others else None
    if number is None or abs(number) > MASKED:
        return masked(call, call.signals[live[0]], live[0], valid_share(call))
    raise UnpredictableError(f"{call.op.name} under a mask of unknown extent")


def valid_share(call: Call) -> float:
    """Of a mask of booleans nothing is measured: one that compares positions is causal, others let all pass."""
    columns = call.output.shape[-1]
    return (columns + 1) / (2 * columns) if call.causal.intersection(call.op.inputs) else 1.0


@moment_rule(assumes="the other operand is a floor for masked logits")
def extreme(call: Call) -> MomentMap:
    """The elementwise extreme of a tensor and a number far beyond its values: the tensor itself."""
    signals = operands(call)
    live = {value: signal for value, signal in signals.items() if not signal.tight}
    floors = [abs(signal.field.mean) for signal in signals.values() if signal.tight]
    if len(live) != 1 or not floors or floors[0] < MASKED:
        raise UnpredictableError(f"{call.op.name} over an axis, or of two tensors")
    (value, x), *_ = live.items()
    return one(x, lambda grads: {value: tuple(grads[0])})


@moment_rule(assumes="the elements are Gaussian")
def prelu(call: Call) -> MomentMap:
    r"""$y = \max(x, 0) + a \min(x, 0)$ with learned slopes $a$ (0.25 at the start), or slopes drawn anew each time.

    As a function of $x$ it has the slope $\sqrt{E[a^2]}$, with $E[a^2] = (l^2 + lu + u^2)/3$ for $a \sim U(l, u)$.
    """
    value, x = call.read()
    steep = _negative_slope(call)
    source, points = standardised(x), nodes_of(x)
    out = call.sources.function(torch.where(points > 0, points, steep * points), x, source)
    slopes_at = torch.where(points > 0, 1.0, steep).to(points.dtype)
    return one(out, lambda grads: {value: weighted(grads[0], slopes_at)})


def _negative_slope(call: Call) -> float:
    if call.op.name == "prelu":
        slope = call.signal("weight", 1)
        if slope is None:
            raise UnpredictableError("nothing is known of the slopes")
        return float(slope.field.ms**0.5) if slope.field.mean >= 0 else slope.field.mean
    low, high = float(call.argument("lower", 1, 1 / 8)), float(call.argument("upper", 2, 1 / 3))
    drawn = bool(call.argument("training", 3))
    return float(((low**2 + low * high + high**2) / 3) ** 0.5) if drawn else (low + high) / 2
