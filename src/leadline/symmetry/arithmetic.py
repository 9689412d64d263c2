"""How scale passes through arithmetic: sums ask for equality, products add, powers multiply."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from leadline.ops.arguments import argument, value_of
from leadline.records import Op
from leadline.symmetry.shifts import is_lost
from leadline.symmetry.system import ZERO, Number
from leadline.symmetry.walk import ANY, Degree, Guard, Scaling, Walk

LARGEST_EPS = 1e-3  # cited: the largest eps in use is MobileNetV3's and EfficientNet's 1e-3 in batch norm
STEPS = 4  # ours: views and casts between a guard and the division that it guards
_MOVES = frozenset({"layout", "cast"})
_ROOTS = frozenset({"rsqrt", "sqrt", "reciprocal"})


def add(walk: Walk, op: Op) -> Degree:
    """$x + y$: both scale alike. A number is a constant, unless it only keeps a division finite."""
    operands = [argument(op, "input", 0), argument(op, "other", 1)]
    tensors = [each for each in operands if value_of(each) is not None]
    if len(tensors) == 1:
        literal = next(each for each in operands if value_of(each) is None)
        if guards(walk, op, literal):
            walk.guards.append(_guard(walk, op, tensors[0], float(literal)))
            return walk.of(tensors[0])
    sides = [each for each in operands if not is_free_shift(walk, op, each)]
    return walk.agree(walk.of(each) for each in sides)


def is_free_shift(walk: Walk, op: Op, operand: Any) -> bool:
    """A parameter added to the signal whose effect the next op takes out again (a bias before a batch norm)."""
    value = walk.value(operand)
    return value is not None and value.source == "parameter" and len(value.shape) == 1 and is_lost(walk, op)


def subtract(walk: Walk, op: Op) -> Degree:
    """As a sum; a number taken away is never a guard."""
    return walk.agree(walk.of(each) for each in (argument(op, "input", 0), argument(op, "other", 1)))


def multiply(walk: Walk, op: Op) -> Degree:
    """$x y$: degrees add."""
    operands = (argument(op, "input", 0), argument(op, "other", 1))
    return walk.product(*((walk.of(each), 1) for each in operands))


def divide(walk: Walk, op: Op) -> Degree:
    """$x / y$: degrees subtract. `1 / x` is recorded as a method of x, with its operands turned round."""
    over, under = argument(op, "input", 0), argument(op, "other", 1)
    if "__r" in op.callable:
        over, under = under, over
    below = walk.of(under)
    return walk.product((walk.of(over), 1), (ZERO if below is ANY else below, -1))


def power(walk: Walk, op: Op) -> Degree:
    """$x^n$: degrees multiply by n; any other exponent makes it inhomogeneous."""
    exponent = argument(op, "exponent", 1)
    if "__r" in op.callable or isinstance(exponent, bool) or not isinstance(exponent, int | float):
        return walk.forbid(walk.floats(op))
    return walk.product((walk.of(argument(op, "input", 0)), Fraction(exponent).limit_denominator(12)))


def raised(exponent: Number) -> Scaling:
    """A fixed power under a name of its own: `square`, `sqrt`, `rsqrt`, `reciprocal`, `var`."""
    return lambda walk, op: walk.product((walk.of(argument(op, "input", 0)), exponent))


def clamp(walk: Walk, op: Op) -> Degree:
    """Bounds at nought keep the scale; a small lower bound under a division is a guard; all others are sizes."""
    low = argument(op, "min", 1)
    high = None if op.name in ("clamp_min", "clamp_max") else argument(op, "max", 2)
    signal = walk.of(argument(op, "input", 0))
    if high is None and op.name != "clamp_max" and guards(walk, op, low):
        walk.guards.append(_guard(walk, op, argument(op, "input", 0), float(low)))
        return signal
    if op.name == "clamp_max":
        low = argument(op, "max", 1)
    bounds = [walk.of(low), walk.of(high)]
    if any(each is not ANY for each in bounds):
        walk.held.append(op.callable)
    return walk.agree([signal, *bounds])


def multiply_add(walk: Walk, op: Op) -> Degree:
    """$x + c\\, a b$ (addcmul), $x + c\\, a / b$ (addcdiv)."""
    x, a, b = (
        walk.of(argument(op, name, place)) for place, name in enumerate(("input", "tensor1", "tensor2"))
    )
    return walk.agree([x, walk.product((a, 1), (b, -1 if op.name == "addcdiv" else 1))])


def compare(walk: Walk, op: Op) -> Degree:
    """$x > y$ asks for nothing if both scale alike; a sign test ($x > 0$) for nothing at all."""
    walk.agree(walk.of(each) for each in op.args[:2])
    return ZERO


def masked_fill(walk: Walk, op: Op) -> Degree:
    """Zeros and infinities can be put in at any scale."""
    return walk.agree([walk.of(argument(op, "input", 0)), walk.of(argument(op, "value", 2))])


def guards(walk: Walk, op: Op, literal: Any) -> bool:
    """Whether this small number is there only to keep a division or root behind it finite."""
    small = isinstance(literal, float) and 0 < literal <= LARGEST_EPS
    return small and len(op.outputs) == 1 and _leads_to_division(walk, op.outputs[0])


def _leads_to_division(walk: Walk, value: int) -> bool:
    for _ in range(STEPS):
        readers = [walk.trace.ops[each] for each in walk.readers[value]]
        if readers and all(_divides_by(reader, value) for reader in readers):
            return True
        if len(readers) != 1 or readers[0].kind not in _MOVES or len(readers[0].outputs) != 1:
            return False
        value = readers[0].outputs[0]
    return False


def _divides_by(op: Op, value: int) -> bool:
    if op.name in _ROOTS:
        return True
    if op.name == "pow":
        exponent = argument(op, "exponent", 1)
        return isinstance(exponent, int | float) and (exponent < 0 or exponent == 0.5)
    below = 0 if "__r" in op.callable else 1
    return op.name == "div" and value_of(argument(op, "other", below)) == value


def _guard(walk: Walk, op: Op, tensor: Any, eps: float) -> Guard:
    value = value_of(tensor)
    assert value is not None
    return Guard(op=op.index, eps=eps, value=value, squared=False, degree=walk.of(tensor))


RULES: dict[str, Scaling] = {
    "add": add,
    "sub": subtract,
    "rsub": subtract,
    "mul": multiply,
    "div": divide,
    "pow": power,
    "float_power": power,
    "square": raised(2),
    "var": raised(2),
    "sqrt": raised(Fraction(1, 2)),
    "rsqrt": raised(Fraction(-1, 2)),
    "reciprocal": raised(-1),
    "addcmul": multiply_add,
    "addcdiv": multiply_add,
    "masked_fill": masked_fill,
} | (
    dict.fromkeys(("clamp", "clip", "clamp_min", "clamp_max"), clamp)
    | dict.fromkeys(("eq", "ne", "lt", "le", "gt", "ge", "isclose", "atan2"), compare)
)
