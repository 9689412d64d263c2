"""Tensors out of nothing: constants and noise."""

from __future__ import annotations

from typing import Any

from leadline.readings.theory.field import independent
from leadline.readings.theory.moment_rule import Call, MomentMap, UnpredictableError, moment_rule, one
from leadline.readings.theory.signal import Signal, number

_SAME = {"zeros": 0.0, "ones": 1.0, "zeros_like": 0.0, "ones_like": 1.0, "new_zeros": 0.0, "new_ones": 1.0}
_DRAWN = {  # mean and second moment (derived)
    "rand": (0.5, 1 / 3),
    "rand_like": (0.5, 1 / 3),
    "uniform": (0.5, 1 / 3),
    "randn": (0.0, 1.0),
    "randn_like": (0.0, 1.0),
    "normal": (0.0, 1.0),
    "exponential": (1.0, 2.0),
}


@moment_rule()
def create(call: Call) -> MomentMap:
    """One number everywhere, draws of a known distribution, or an arithmetic sequence."""
    return one(_made(call), lambda grads: {})


def _made(call: Call) -> Signal:
    name, shape = call.op.name, call.output.shape
    if not call.output.floating:
        raise UnpredictableError("integers")
    if name in _SAME:
        return number(shape, _SAME[name])
    if name in _DRAWN:
        return call.sources.gaussian(independent(shape, *_DRAWN[name]))
    if name in ("full", "full_like", "new_full"):
        return number(shape, _literal(call.argument("fill_value", 1 if name != "new_full" else 2)))
    if name in ("tensor", "scalar_tensor", "new_tensor"):
        return number(shape, _literal(call.argument("data", 1 if name == "new_tensor" else 0)))
    if name == "eye":
        n = max(shape[-1], 1)
        return call.sources.gaussian(independent(shape, 1 / n, 1 / n))
    return _sequence(call, shape)


def _literal(argument: Any) -> float:
    if isinstance(argument, bool) or not isinstance(argument, int | float):
        raise UnpredictableError("a tensor made of unknown numbers")
    return float(argument)


def _sequence(call: Call, shape: tuple[int, ...]) -> Signal:
    """Equal steps from `start`: mean of the ends, variance (n^2 - 1)/12 steps squared."""
    numbers = [
        float(each) for each in call.op.args if isinstance(each, int | float) and not isinstance(each, bool)
    ]
    n = shape[0] if shape else 1
    if call.op.name == "linspace" and len(numbers) >= 2:
        first, step = numbers[0], (numbers[1] - numbers[0]) / max(n - 1, 1)
    elif call.op.name == "arange" and numbers:
        first = numbers[0] if len(numbers) > 1 else 0.0
        step = numbers[2] if len(numbers) > 2 else 1.0
    else:
        raise UnpredictableError("a sequence of unknown ends")
    mean = first + step * (n - 1) / 2
    return call.sources.gaussian(independent(shape, mean, mean**2 + step**2 * (n * n - 1) / 12))
