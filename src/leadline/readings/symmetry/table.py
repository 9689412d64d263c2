"""How scale passes through an op, by canonical name: what it demands of its inputs, and the degree of its output.

Three states, as in the op table: an op has a rule here; or it is declared fixed (its inputs may not scale, because it
is not homogeneous); or it is held fixed because nobody knows or worked out better, and reported.
"""

from __future__ import annotations

from functools import cache

from leadline.ops import family_of
from leadline.ops.family import words
from leadline.readings.symmetry import scale_rules
from leadline.readings.symmetry.system import ZERO
from leadline.readings.symmetry.walk import ANY, Degree, Scaling, Walk
from leadline.records import Op

# What keeps the scale of its first tensor: f(a x) = a f(x) for a > 0.
PASSED = words(
    """relu leaky_relu rrelu abs neg dropout dropout1d dropout2d dropout3d feature_dropout native_dropout
    mean sum amax amin median nanmean nansum cumsum std norm vector_norm nan_to_num
    avg_pool1d avg_pool2d avg_pool3d max_pool1d max_pool2d max_pool3d max_pool1d_with_indices max_pool2d_with_indices
    max_pool3d_with_indices adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d adaptive_max_pool1d
    adaptive_max_pool2d adaptive_max_pool3d lp_pool1d lp_pool2d fractional_max_pool2d max_unpool2d interpolate upsample
    sort topk kthvalue mode cummax cummin
    fft_fft fft_ifft fft_rfft fft_irfft fft_fft2 fft_ifft2 fft_rfft2 fft_irfft2 fft_fftn fft_ifftn fft_rfftn fft_irfftn
    stft istft conj resolve_conj fold expand expand_as repeat repeat_interleave tile broadcast_to diag_embed"""
)
# All tensors must scale alike, and so does the result.
SHARED = words(
    """cat concat concatenate stack hstack vstack dstack index_put index_add index_copy scatter_add scatter_reduce
    masked_scatter scatter broadcast_tensors meshgrid block_diag nested_tensor maximum minimum fmax fmin max min hypot
    cdist pairwise_distance diff complex lerp where index_fill setitem"""
)
# The result does not depend on the scale, whatever it is: signs, ranks, directions.
SCALELESS = words(
    """sign argmax argmin argsort isnan isinf isfinite logical_and logical_or logical_not logical_xor bitwise_and
    bitwise_or bitwise_not bitwise_xor one_hot bincount nonzero all any is_all_true is_any_true angle and or invert
    xor lshift rshift isin zeros_like ones_like empty_like full_like rand_like randn_like randint_like new_zeros
    new_ones new_empty new_empty_strided new_full"""
)
# Functions that know a size of their own.
FIXED = words(
    """elu selu celu gelu silu mish softplus sigmoid logsigmoid tanh hardsigmoid hardswish softsign tanhshrink erf logit
    glu alpha_dropout feature_alpha_dropout exp exp2 expm1 log log2 log10 log1p sin cos tan atan asinh acosh atanh sinh
    cosh asin acos erfc erfinv lgamma digamma sinc logaddexp xlogy softmax log_softmax softmin
    gumbel_softmax sparsemax safe_softmax logsumexp tensor scalar_tensor"""
)
# Held, though some of their inputs may have a freedom: pieces that know no size, gates inside, counts as exponents.
HELD = words(
    """relu6 hardtanh hardshrink softshrink threshold round floor ceil trunc frac fmod remainder floor_divide
    local_response_norm lstm gru rnn_tanh rnn_relu lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell prod cumprod
    segment_reduce searchsorted bucketize histc unique bernoulli multinomial normal uniform exponential poisson polar
    linalg_solve_triangular"""
)


def scale_through(walk: Walk, op: Op) -> None:
    """Add what this op says to the equations."""
    if not any(walk.trace.values[each].floating for each in (*op.inputs, *op.outputs)):
        return
    walk.write(op, _rules().get(op.name, _held)(walk, op))


@cache
def _rules() -> dict[str, Scaling]:
    rules: dict[str, Scaling] = {}
    rules |= dict.fromkeys(PASSED, _first)
    rules |= dict.fromkeys(SHARED, _alike)
    rules |= dict.fromkeys(SCALELESS, _scaleless)
    rules |= dict.fromkeys(FIXED, _fixed)
    rules |= dict.fromkeys(HELD, _held)
    return (
        rules | scale_rules.ARITHMETIC_RULES | scale_rules.LAYER_RULES | dict.fromkeys(_moved(), _by_family)
    )


def _moved() -> frozenset[str]:
    """Ops that move, pick, make or judge elements, as far as no other rule has them."""
    return words(
        """view view_as reshape reshape_as flatten unflatten ravel squeeze unsqueeze transpose permute movedim moveaxis
        swapaxes swapdims t T mT H mH contiguous clone detach data real imag channel_shuffle pixel_shuffle
        pixel_unshuffle flip roll rot90 alias to_sparse to_dense values requires_grad asarray as_tensor
        to type type_as float half bfloat16 double int long cpu cuda bool byte
        getitem select narrow slice chunk split split_with_sizes tensor_split hsplit vsplit dsplit unbind index_select
        gather take take_along_dim masked_select diagonal diag tril triu unfold as_strided view_as_real view_as_complex
        index"""
    )


def _by_family(walk: Walk, op: Op) -> Degree:
    """Elements are moved or picked; a cast to whole numbers rounds, one to truth values asks for zero only."""
    degree = _first(walk, op)
    made = {walk.trace.values[each].dtype for each in op.outputs}
    family = family_of(op.name)
    if (
        family is not None
        and family.kind == "cast"
        and any(kind.startswith(("int", "uint")) for kind in made)
    ):
        walk.forbid([degree])
    return degree


def _first(walk: Walk, op: Op) -> Degree:
    found = walk.tensors(op)
    return walk.of(f"%{found[0]}") if found else ZERO


def _alike(walk: Walk, op: Op) -> Degree:
    literals = [walk.of(each) for each in op.args[1:] if isinstance(each, float)]
    return walk.agree([*walk.floats(op), *literals, *_filled(walk, op)])


def _filled(walk: Walk, op: Op) -> list[Degree]:
    """The number that `x[i] = number` or `where(c, x, number)` puts in."""
    place = {"setitem": 2, "where": 2, "index_fill": 3, "scatter": 3}.get(op.name)
    if place is None or place >= len(op.args) or walk.value(op.args[place]) is not None:
        return []
    return [walk.of(op.args[place])]


def _scaleless(walk: Walk, op: Op) -> Degree:
    return ANY if "zeros" in op.name or "empty" in op.name else ZERO


def _fixed(walk: Walk, op: Op) -> Degree:
    return walk.forbid(walk.floats(op))


def _held(walk: Walk, op: Op) -> Degree:
    walk.held.append(op.callable)
    return walk.forbid(walk.floats(op))
