"""How scale passes through ops: the scale rules that the rows of `leadline.ops.table` name.

A rule adds what an op demands of its inputs to the equations and returns the degree of its output. The name of a rule
is the name of its function.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from leadline.ops.arguments import argument, norm_eps, value_of
from leadline.ops.table import LAYOUT_KINDS, find_op
from leadline.readings.symmetry.equations import ANY, Degree, Degrees, EpsGuard, ScaleEquations, ScaleRule
from leadline.readings.symmetry.lost_biases import is_lost
from leadline.readings.symmetry.system import ZERO, Number
from leadline.records import Op

# Cited: the largest eps in use is 1e-3, in the batch norms of MobileNetV3 and EfficientNet.
MAX_GUARD_EPS = 1e-3

# Heuristic: models put at most this many views and casts between a guard and the division that it guards.
MAX_OPS_TO_DIVISION = 4


def pass_scale(scales: ScaleEquations, op: Op) -> None:
    """Add what this op demands to the equations, and set the degrees of its outputs."""
    if not any(scales.trace.values[each].floating for each in (*op.inputs, *op.outputs)):
        return
    row = find_op(op.name)
    name = None if row is None else row.scale_rule
    rule = _held if name is None else SCALE_RULES[name]
    scales.write(op, rule(scales, op))


def _held(scales: ScaleEquations, op: Op) -> Degree:
    """An op without a rule: its inputs are held fixed, and it is reported."""
    scales.held.append(op.callable)
    return scales.forbid(scales.floats(op))


# Rules that many ops share.


def homogeneous(scales: ScaleEquations, op: Op) -> Degree:
    """The output scales as the first tensor does: $f(a x) = a f(x)$ for $a > 0$."""
    tensors = scales.tensors(op)
    return scales.of(f"%{tensors[0]}") if tensors else ZERO


def cast(scales: ScaleEquations, op: Op) -> Degree:
    """As `homogeneous`; but a cast to integers rounds, so that its input may not scale."""
    degree = homogeneous(scales, op)
    dtypes = {scales.trace.values[each].dtype for each in op.outputs}
    if any(dtype.startswith(("int", "uint")) for dtype in dtypes):
        scales.forbid([degree])
    return degree


def same_scale(scales: ScaleEquations, op: Op) -> Degree:
    """All tensors must scale alike, and so does the result."""
    literals = [scales.of(each) for each in op.args[1:] if isinstance(each, float)]
    return scales.agree([*scales.floats(op), *literals, *_filler(scales, op)])


def _filler(scales: ScaleEquations, op: Op) -> list[Degree]:
    """The degree of the number that `x[i] = number` or `where(c, x, number)` writes."""
    place = {"setitem": 2, "where": 2, "index_fill": 3, "scatter": 3}.get(op.name)
    if place is None or place >= len(op.args) or scales.value(op.args[place]) is not None:
        return []
    return [scales.of(op.args[place])]


def scale_free(scales: ScaleEquations, op: Op) -> Degree:
    """The result does not depend on the scale of the inputs: signs, ranks, directions."""
    return ANY if "zeros" in op.name or "empty" in op.name else ZERO


def fixed(scales: ScaleEquations, op: Op) -> Degree:
    """A function that is not homogeneous, or a loss: no input may scale."""
    return scales.forbid(scales.floats(op))


# Layers and norms.


def linear(scales: ScaleEquations, op: Op) -> Degree:
    """$x W + b$: degrees of input and weight add; the bias must have their sum, unless a later op removes it."""
    out = scales.product((scales.of(argument(op, "input", 0)), 1), (scales.of(argument(op, "weight", 1)), 1))
    return _with_bias(scales, op, out, argument(op, "bias", 2))


def bilinear(scales: ScaleEquations, op: Op) -> Degree:
    """$a W b + c$: the degrees of all three factors add."""
    factors = [argument(op, name, place) for place, name in enumerate(("input1", "input2", "weight"))]
    out = scales.product(*((scales.of(each), 1) for each in factors))
    return _with_bias(scales, op, out, argument(op, "bias", 3))


def matrix_product(scales: ScaleEquations, op: Op) -> Degree:
    """Products of matrices in any notation: degrees add."""
    return scales.product(*((degree, 1) for degree in scales.floats(op)))


def matrix_product_add(scales: ScaleEquations, op: Op) -> Degree:
    r"""$\beta c + \alpha A B$ (`addmm` and its relatives); with $\beta = 0$ the first operand is not read."""
    added, *factors = scales.tensors(op)[:3]
    product = scales.product(*((scales.of(f"%{each}"), 1) for each in factors))
    if op.kwargs.get("beta", 1) == 0:
        return product
    return _with_bias(scales, op, product, f"%{added}")


def embedding(scales: ScaleEquations, op: Op) -> Degree:
    """Rows of the table; with a bound on their norm the table may not scale."""
    weight = argument(op, "weight", 1)
    table = scales.value(weight)
    if table is None or not table.floating:
        weight = argument(op, "weight", 0)
    degree = scales.of(weight)
    bounded = op.kwargs.get("max_norm") is not None or any(isinstance(each, float) for each in op.args)
    if bounded:
        scales.held.append(op.callable)
        return scales.forbid([degree])
    weights = op.kwargs.get("per_sample_weights")
    return degree if weights is None else scales.product((degree, 1), (scales.of(weights), 1))


def attention(scales: ScaleEquations, op: Op) -> Degree:
    r"""$\mathrm{softmax}(q k / \sqrt d)\, v$: the logits may not scale, and the output scales as $v$ does."""
    q, k, v = (scales.of(argument(op, name, place)) for place, name in enumerate(("query", "key", "value")))
    scales.forbid([scales.product((q, 1), (k, 1)), _float_degree(scales, argument(op, "attn_mask", 3))])
    return v


def normalization(scales: ScaleEquations, op: Op) -> Degree:
    """Layer, group, RMS and instance norm: the output has the scale of the gain, and the bias must match it."""
    places = {
        "layer_norm": (2, 3),
        "rms_norm": (2, 9),
        "group_norm": (2, 3),
        "instance_norm": (3, 4),
    }
    gain, bias = places[op.name]
    _note_eps(scales, op)
    if op.name == "instance_norm" and argument(op, "use_input_stats", 5) is False:
        scales.forbid([scales.of(argument(op, "input", 0))])
    return _gain_degree(scales, op, argument(op, "weight", gain), argument(op, "bias", bias))


def batch_norm(scales: ScaleEquations, op: Op) -> Degree:
    """A norm with the statistics of the batch; with stored ones, in eval mode, an affine map whose input is fixed."""
    stored = argument(op, "running_mean", 1) is not None
    if stored and argument(op, "training", 5) is not True:
        scales.forbid([scales.of(argument(op, "input", 0))])
    else:
        _note_eps(scales, op)
        _note_statistics(scales, op)
    return _gain_degree(scales, op, argument(op, "weight", 3), argument(op, "bias", 4))


def direction(scales: ScaleEquations, op: Op) -> Degree:
    """`F.normalize` and cosine similarity: only directions are left."""
    if op.name == "normalize":
        _note_eps(scales, op)
    return ZERO


def weight_norm(scales: ScaleEquations, op: Op) -> Degrees:
    r"""$g\, v / |v|$ has the scale of $g$ and none of $v$; the second output is $|v|$."""
    return scales.of(argument(op, "g", 1)), scales.of(argument(op, "v", 0))


def prelu(scales: ScaleEquations, op: Op) -> Degree:
    """The output scales as the input does; the slope may not scale."""
    scales.forbid([scales.of(argument(op, "weight", 1))])
    return scales.of(argument(op, "input", 0))


def pad(scales: ScaleEquations, op: Op) -> Degree:
    """Padding with zeros, or with elements of the input, fits any scale."""
    return scales.agree([scales.of(argument(op, "input", 0)), scales.of(argument(op, "value", 3))])


def variance_and_mean(scales: ScaleEquations, op: Op) -> Degrees:
    """`var_mean`, `std_mean`: two outputs of different degree."""
    signal = scales.of(argument(op, "input", 0))
    return scales.product((signal, 2 if op.name == "var_mean" else 1)), signal


def overwrite(scales: ScaleEquations, op: Op) -> Degree:
    """`copy_`, `fill_`, `zero_`: the degree of what is written; the old content does not matter."""
    if op.name == "zero":
        return ANY
    return scales.of(argument(op, "src" if op.name == "copy" else "value", 1))


def create(scales: ScaleEquations, op: Op) -> Degree:
    """A tensor without operands: zeros fit any scale, everything else is a constant."""
    if op.name in ("zeros", "empty"):
        return ANY
    if op.name == "full":
        return scales.of(argument(op, "fill_value", 1))
    return ZERO


def grid_sample(scales: ScaleEquations, op: Op) -> Degree:
    """A weighted mean of pixels; the coordinates may not scale."""
    scales.forbid([scales.of(argument(op, "grid", 1))])
    return scales.of(argument(op, "input", 0))


def _with_bias(scales: ScaleEquations, op: Op, out: Degree, bias: Any) -> Degree:
    if bias is None or (out is not ANY and is_lost(scales, op)):
        return out
    return scales.agree([out, scales.of(bias)])


def _gain_degree(scales: ScaleEquations, op: Op, gain: Any, bias: Any) -> Degree:
    out = ZERO if gain is None else scales.of(gain)
    return out if bias is None or is_lost(scales, op) else scales.agree([out, scales.of(bias)])


def _float_degree(scales: ScaleEquations, tensor: Any) -> Degree:
    value = scales.value(tensor)
    return scales.of(tensor) if value is not None and value.floating else ANY


def _note_statistics(scales: ScaleEquations, op: Op) -> None:
    """A running mean scales as the signal does, a running variance as its square."""
    signal = scales.of(argument(op, "input", 0))
    for place, power in ((1, 1), (2, 2)):
        buffer = scales.value(argument(op, ("running_mean", "running_var")[power - 1], place))
        degree = scales.product((signal, power))
        if buffer is not None and buffer.source == "buffer" and degree is not None:
            scales.statistics[buffer.name] = degree


def _note_eps(scales: ScaleEquations, op: Op) -> None:
    value = value_of(argument(op, "input", 0))
    if value is not None:
        degree = scales.of(f"%{value}")
        scales.guards.append(
            EpsGuard(op=op.index, eps=norm_eps(op), value=value, squared=True, degree=degree)
        )


# Arithmetic: sums demand equal degrees, products add them, powers multiply them.

_ROOTS = frozenset({"rsqrt", "sqrt", "reciprocal"})


def add(scales: ScaleEquations, op: Op) -> Degree:
    """$x + y$: both scale alike. A number is a constant, unless it only keeps a division finite."""
    operands = [argument(op, "input", 0), argument(op, "other", 1)]
    tensors = [each for each in operands if value_of(each) is not None]
    if len(tensors) == 1:
        literal = next(each for each in operands if value_of(each) is None)
        if _guards_division(scales, op, literal):
            scales.guards.append(_guard(scales, op, tensors[0], float(literal)))
            return scales.of(tensors[0])
    return scales.agree(scales.of(each) for each in operands if not _is_lost_shift(scales, op, each))


def _is_lost_shift(scales: ScaleEquations, op: Op, operand: Any) -> bool:
    """Whether a parameter is added to the signal that a later op removes again (a bias before a batch norm)."""
    value = scales.value(operand)
    return value is not None and value.source == "parameter" and len(value.shape) == 1 and is_lost(scales, op)


def subtract(scales: ScaleEquations, op: Op) -> Degree:
    """As a sum; a number that is subtracted never guards a division."""
    return scales.agree(scales.of(each) for each in (argument(op, "input", 0), argument(op, "other", 1)))


def multiply(scales: ScaleEquations, op: Op) -> Degree:
    """$x y$: degrees add."""
    operands = (argument(op, "input", 0), argument(op, "other", 1))
    return scales.product(*((scales.of(each), 1) for each in operands))


def divide(scales: ScaleEquations, op: Op) -> Degree:
    """$x / y$: degrees subtract. `1 / x` is recorded as a method of x, with its operands reversed."""
    over, under = argument(op, "input", 0), argument(op, "other", 1)
    if "__r" in op.callable:
        over, under = under, over
    below = scales.of(under)
    return scales.product((scales.of(over), 1), (ZERO if below is ANY else below, -1))


def power(scales: ScaleEquations, op: Op) -> Degree:
    """$x^n$: the degree is multiplied by n; an exponent that is not a number makes it inhomogeneous."""
    exponent = argument(op, "exponent", 1)
    if "__r" in op.callable or isinstance(exponent, bool) or not isinstance(exponent, int | float):
        return scales.forbid(scales.floats(op))
    return _raised(scales, op, Fraction(exponent).limit_denominator(12))


def square(scales: ScaleEquations, op: Op) -> Degree:
    """`square` and `var`: twice the degree."""
    return _raised(scales, op, 2)


def square_root(scales: ScaleEquations, op: Op) -> Degree:
    """`sqrt`: half the degree."""
    return _raised(scales, op, Fraction(1, 2))


def inverse_root(scales: ScaleEquations, op: Op) -> Degree:
    """`rsqrt`: minus half the degree."""
    return _raised(scales, op, Fraction(-1, 2))


def inverse(scales: ScaleEquations, op: Op) -> Degree:
    """`reciprocal`: minus the degree."""
    return _raised(scales, op, -1)


def _raised(scales: ScaleEquations, op: Op, exponent: Number) -> Degree:
    return scales.product((scales.of(argument(op, "input", 0)), exponent))


def clamp(scales: ScaleEquations, op: Op) -> Degree:
    """Bounds at zero keep the scale; a small lower bound before a division is a guard; others fix the scale."""
    low = argument(op, "min", 1)
    high = None if op.name in ("clamp_min", "clamp_max") else argument(op, "max", 2)
    signal = scales.of(argument(op, "input", 0))
    if high is None and op.name != "clamp_max" and _guards_division(scales, op, low):
        scales.guards.append(_guard(scales, op, argument(op, "input", 0), float(low)))
        return signal
    if op.name == "clamp_max":
        low = argument(op, "max", 1)
    bounds = [scales.of(low), scales.of(high)]
    if any(each is not ANY for each in bounds):
        scales.held.append(op.callable)
    return scales.agree([signal, *bounds])


def multiply_add(scales: ScaleEquations, op: Op) -> Degree:
    r"""$x + c\, a b$ (`addcmul`), $x + c\, a / b$ (`addcdiv`)."""
    names = ("input", "tensor1", "tensor2")
    x, a, b = (scales.of(argument(op, name, place)) for place, name in enumerate(names))
    return scales.agree([x, scales.product((a, 1), (b, -1 if op.name == "addcdiv" else 1))])


def compare(scales: ScaleEquations, op: Op) -> Degree:
    """$x > y$: both must scale alike; a sign test ($x > 0$) demands nothing."""
    scales.agree(scales.of(each) for each in op.args[:2])
    return ZERO


def masked_fill(scales: ScaleEquations, op: Op) -> Degree:
    """Zeros and infinities can be filled in at any scale."""
    return scales.agree([scales.of(argument(op, "input", 0)), scales.of(argument(op, "value", 2))])


def _guards_division(scales: ScaleEquations, op: Op, literal: Any) -> bool:
    """Whether this small number only keeps a later division or root finite."""
    small = isinstance(literal, float) and 0 < literal <= MAX_GUARD_EPS
    return small and len(op.outputs) == 1 and _leads_to_division(scales, op.outputs[0])


def _leads_to_division(scales: ScaleEquations, value: int) -> bool:
    for _ in range(MAX_OPS_TO_DIVISION):
        readers = [scales.trace.ops[each] for each in scales.readers[value]]
        if readers and all(_divides_by(reader, value) for reader in readers):
            return True
        if len(readers) != 1 or readers[0].kind not in LAYOUT_KINDS or len(readers[0].outputs) != 1:
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


def _guard(scales: ScaleEquations, op: Op, tensor: Any, eps: float) -> EpsGuard:
    value = value_of(tensor)
    assert value is not None
    return EpsGuard(op=op.index, eps=eps, value=value, squared=False, degree=scales.of(tensor))


SCALE_RULES: dict[str, ScaleRule] = {
    rule.__name__: rule
    for rule in (
        *(homogeneous, cast, same_scale, scale_free, fixed),
        *(linear, bilinear, matrix_product, matrix_product_add, embedding, attention),
        *(normalization, batch_norm, direction, weight_norm, prelu, pad, variance_and_mean),
        *(overwrite, create, grid_sample),
        *(add, subtract, multiply, divide, power, square, square_root, inverse_root, inverse),
        *(clamp, multiply_add, compare, masked_fill),
    )
}
"""Every scale rule by its name."""
