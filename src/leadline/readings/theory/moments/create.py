"""Moment rule of ops that create tensors: constants, noise and sequences."""

from __future__ import annotations

from typing import Any

from leadline.ops.table import UNINITIALIZED_OPS
from leadline.readings.theory.field import independent
from leadline.readings.theory.moment_rule import (
    Call,
    MomentMap,
    UnpredictableError,
    moment_rule,
    single_output,
)
from leadline.readings.theory.signal import Signal, constant_signal, uninitialized_signal

# Derived: the value that each function of torch fills its result with.
_CONSTANTS = {
    "zeros": 0.0,
    "ones": 1.0,
    "zeros_like": 0.0,
    "ones_like": 1.0,
    "new_zeros": 0.0,
    "new_ones": 1.0,
}
# Derived: mean and second moment of each distribution.
_DISTRIBUTIONS = {
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
    """One value everywhere, samples of a known distribution, an arithmetic sequence, or memory to be written."""
    return single_output(_created_signal(call), lambda grads: {})


def _created_signal(call: Call) -> Signal:
    name, shape = call.op.name, call.output.shape
    if name in _CONSTANTS:
        return constant_signal(shape, _CONSTANTS[name])
    if name in UNINITIALIZED_OPS:
        return uninitialized_signal(shape)
    if name in _DISTRIBUTIONS:
        return call.sources.gaussian(independent(shape, *_DISTRIBUTIONS[name]))
    if name in ("full", "full_like", "new_full"):
        return constant_signal(shape, _literal(call.argument("fill_value", 1 if name != "new_full" else 2)))
    if name in ("tensor", "scalar_tensor", "new_tensor"):
        return constant_signal(shape, _literal(call.argument("data", 1 if name == "new_tensor" else 0)))
    if name == "eye":
        n = max(shape[-1], 1)
        return call.sources.gaussian(independent(shape, 1 / n, 1 / n))
    return _sequence(call, shape)


def _literal(argument: Any) -> float:
    if isinstance(argument, bool) or not isinstance(argument, int | float):
        raise UnpredictableError("a tensor of unknown values")
    return float(argument)


def _sequence(call: Call, shape: tuple[int, ...]) -> Signal:
    r"""Equal steps $s$ from the first value: the mean of the ends, and variance $s^2 (n^2 - 1)/12$."""
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
        raise UnpredictableError("a sequence with unknown ends")
    mean = first + step * (n - 1) / 2
    return call.sources.gaussian(independent(shape, mean, mean**2 + step**2 * (n * n - 1) / 12))
