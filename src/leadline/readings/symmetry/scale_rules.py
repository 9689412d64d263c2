"""How scale passes through each op: through layers, norms and arithmetic."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from leadline.ops.arguments import argument, value_of
from leadline.ops.family import words
from leadline.readings.symmetry.shifts import is_lost
from leadline.readings.symmetry.system import ZERO, Number
from leadline.readings.symmetry.walk import ANY, Degree, Degrees, Guard, Scaling, Walk
from leadline.records import Op

DEFAULT_EPS = {"rms_norm": 1.2e-7, "normalize": 1e-12}  # PyTorch's own: float32's epsilon; F.normalize's


def linear(walk: Walk, op: Op) -> Degree:
    """$x W + b$: degrees of input and weight add, the bias must have their sum, unless what it adds is lost anyway."""
    out = walk.product((walk.of(argument(op, "input", 0)), 1), (walk.of(argument(op, "weight", 1)), 1))
    return _with_bias(walk, op, out, argument(op, "bias", 2))


def bilinear(walk: Walk, op: Op) -> Degree:
    factors = [argument(op, name, place) for place, name in enumerate(("input1", "input2", "weight"))]
    return _with_bias(
        walk, op, walk.product(*((walk.of(each), 1) for each in factors)), argument(op, "bias", 3)
    )


def matrix_product(walk: Walk, op: Op) -> Degree:
    """Products of matrices, however written: degrees add."""
    return walk.product(*((degree, 1) for degree in walk.floats(op)))


def matrix_product_add(walk: Walk, op: Op) -> Degree:
    """$\\beta c + \\alpha A B$ (addmm and its like); with $\\beta = 0$ the first one is not read."""
    added, *factors = walk.tensors(op)[:3]
    product = walk.product(*((walk.of(f"%{each}"), 1) for each in factors))
    if op.kwargs.get("beta", 1) == 0:
        return product
    return _with_bias(walk, op, product, f"%{added}")


def embedding(walk: Walk, op: Op) -> Degree:
    """Rows of the table; a bound on their norm is a size."""
    weight = argument(op, "weight", 1)
    if walk.value(weight) is None or not walk.value(weight).floating:  # type: ignore[union-attr]
        weight = argument(op, "weight", 0)
    degree = walk.of(weight)
    bounded = op.kwargs.get("max_norm") is not None or any(isinstance(each, float) for each in op.args)
    if bounded:
        walk.held.append(op.callable)
        return walk.forbid([degree])
    weights = op.kwargs.get("per_sample_weights")
    return degree if weights is None else walk.product((degree, 1), (walk.of(weights), 1))


def attention(walk: Walk, op: Op) -> Degree:
    """softmax(q k / sqrt(d)) v: the logits may not scale, and the output scales as v does."""
    q, k, v = (walk.of(argument(op, name, place)) for place, name in enumerate(("query", "key", "value")))
    walk.forbid([walk.product((q, 1), (k, 1)), _float_degree(walk, argument(op, "attn_mask", 3))])
    return v


def normalised(walk: Walk, op: Op) -> Degree:
    """Layer, group, RMS and instance norm: whatever came in, the gain's scale goes out; the shift must match it."""
    places = {
        "layer_norm": (2, 3, 4),
        "rms_norm": (2, 9, 3),
        "group_norm": (2, 3, 4),
        "instance_norm": (3, 4, 7),
    }
    gain, shift, eps = places[op.name]
    _note_eps(walk, op, argument(op, "eps", eps, DEFAULT_EPS.get(op.name, 1e-5)))
    if op.name == "instance_norm" and argument(op, "use_input_stats", 5) is False:
        walk.forbid([walk.of(argument(op, "input", 0))])
    return _gained(walk, op, argument(op, "weight", gain), argument(op, "bias", shift))


def batch_norm(walk: Walk, op: Op) -> Degree:
    """With the batch's own statistics a norm; with stored ones an affine map that knows its sizes, in eval mode."""
    stored = argument(op, "running_mean", 1) is not None
    if stored and argument(op, "training", 5) is not True:
        walk.forbid([walk.of(argument(op, "input", 0))])
    else:
        _note_eps(walk, op, argument(op, "eps", 7, 1e-5))
        _note_statistics(walk, op)
    return _gained(walk, op, argument(op, "weight", 3), argument(op, "bias", 4))


def direction(walk: Walk, op: Op) -> Degree:
    """`F.normalize` and cosine similarity: only directions are left."""
    if op.name == "normalize":
        _note_eps(walk, op, argument(op, "eps", 3, DEFAULT_EPS["normalize"]))
    return ZERO


def weight_norm(walk: Walk, op: Op) -> Degrees:
    """$g\\, v / |v|$ has the scale of g and none of v; the second output is $|v|$."""
    return walk.of(argument(op, "g", 1)), walk.of(argument(op, "v", 0))


def prelu(walk: Walk, op: Op) -> Degree:
    """The slope is a pure number: it may not scale."""
    walk.forbid([walk.of(argument(op, "weight", 1))])
    return walk.of(argument(op, "input", 0))


def pad(walk: Walk, op: Op) -> Degree:
    """Padding with zeros, or with what is there, fits any scale."""
    return walk.agree([walk.of(argument(op, "input", 0)), walk.of(argument(op, "value", 3))])


def moments(walk: Walk, op: Op) -> Degrees:
    """`var_mean`, `std_mean`: two outputs of different degree."""
    signal = walk.of(argument(op, "input", 0))
    return walk.product((signal, 2 if op.name == "var_mean" else 1)), signal


def overwritten(walk: Walk, op: Op) -> Degree:
    """`copy_`, `fill_`, `zero_`: what was there before does not matter."""
    if op.name == "zero":
        return ANY
    return walk.of(argument(op, "src" if op.name == "copy" else "value", 1))


def created(walk: Walk, op: Op) -> Degree:
    """A tensor made of nothing: zeros fit any scale, all else is a constant."""
    if op.name in ("zeros", "empty"):
        return ANY
    if op.name == "full":
        return walk.of(argument(op, "fill_value", 1))
    return ZERO


def sampled(walk: Walk, op: Op) -> Degree:
    """`grid_sample`: a weighted mean of pixels; where to look may not scale."""
    walk.forbid([walk.of(argument(op, "grid", 1))])
    return walk.of(argument(op, "input", 0))


def loss(walk: Walk, op: Op) -> Degree:
    """A loss tells any two predictions apart, so none of them may scale."""
    return walk.forbid(walk.floats(op))


def _with_bias(walk: Walk, op: Op, out: Degree, bias: Any) -> Degree:
    if bias is None or (out is not ANY and is_lost(walk, op)):
        return out
    return walk.agree([out, walk.of(bias)])


def _gained(walk: Walk, op: Op, gain: Any, shift: Any) -> Degree:
    out = ZERO if gain is None else walk.of(gain)
    return out if shift is None or is_lost(walk, op) else walk.agree([out, walk.of(shift)])


def _float_degree(walk: Walk, tensor: Any) -> Degree:
    value = walk.value(tensor)
    return walk.of(tensor) if value is not None and value.floating else ANY


def _note_statistics(walk: Walk, op: Op) -> None:
    """A running mean scales as the signal does, a running variance as its square."""
    signal = walk.of(argument(op, "input", 0))
    for place, power in ((1, 1), (2, 2)):
        buffer = walk.value(argument(op, ("running_mean", "running_var")[power - 1], place))
        degree = walk.product((signal, power))
        if buffer is not None and buffer.source == "buffer" and degree is not None:
            walk.statistics[buffer.name] = degree


def _note_eps(walk: Walk, op: Op, eps: Any) -> None:
    value = value_of(argument(op, "input", 0))
    if value is not None:
        small = float(eps) if isinstance(eps, int | float) else DEFAULT_EPS.get(op.name, 1e-5)
        degree = walk.of(f"%{value}")
        walk.guards.append(Guard(op=op.index, eps=small, value=value, squared=True, degree=degree))


LAYER_RULES: dict[str, Scaling] = {
    "bilinear": bilinear,
    "scaled_dot_product_attention": attention,
    "batch_norm": batch_norm,
    "weight_norm_interface": weight_norm,
    "weight_norm": weight_norm,
    "prelu": prelu,
    "pad": pad,
    "grid_sample": sampled,
}
for names, scaling in (
    (
        "linear conv1d conv2d conv3d convolution conv_transpose1d conv_transpose2d conv_transpose3d conv_tbc",
        linear,
    ),
    (
        "matmul mm bmm mv einsum tensordot inner dot vdot outer ger chain_matmul kron grouped_mm",
        matrix_product,
    ),
    ("addmm addbmm baddbmm addmv", matrix_product_add),
    ("embedding embedding_bag", embedding),
    ("layer_norm rms_norm group_norm instance_norm", normalised),
    ("normalize cosine_similarity", direction),
    ("var_mean std_mean", moments),
    ("copy fill zero", overwritten),
    (
        """zeros ones empty empty_strided full arange linspace logspace eye rand randn randint randperm tril_indices
        triu_indices new_tensor from_numpy""",
        created,
    ),
    (
        """cross_entropy cross_entropy_loss nll_loss nll_loss_nd nll_loss2d mse_loss l1_loss smooth_l1_loss huber_loss
        binary_cross_entropy binary_cross_entropy_with_logits kl_div poisson_nll_loss gaussian_nll_loss ctc_loss
        cosine_embedding_loss margin_ranking_loss hinge_embedding_loss triplet_margin_loss multi_margin_loss
        multilabel_margin_loss multilabel_soft_margin_loss soft_margin_loss linear_cross_entropy""",
        loss,
    ),
):
    LAYER_RULES |= dict.fromkeys(words(names), scaling)


# How scale passes through arithmetic: sums ask for equality, products add, powers multiply.

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


ARITHMETIC_RULES: dict[str, Scaling] = {
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
