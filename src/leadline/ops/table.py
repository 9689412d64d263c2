"""The op table: one row per group of ops that share a kind, a scale rule and a moment rule.

The recorder, the symmetry reading and the theory reading all read this table; no op name is typed anywhere else to say
what an op is. A rule is named here and implemented where it is used: scale rules in
`leadline.readings.symmetry.scale_rules`, moment rules in `leadline.readings.theory.moments`.

An op is in one of three states for each reading: it has a rule, it is declared neutral, or it is unknown and reported.
An op that the table does not list is unknown everywhere; it is never taken for a harmless one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

Role = Literal["signal", "parameter", "constant"]
"""What a tensor operand carries: the batch's signal, parameters only, or neither."""

LAYOUT_KINDS = frozenset({"layout", "cast"})
"""Kinds of ops that only move elements, so that the statistics of their output are those of their input."""

NEUTRAL = "neutral"
"""The moment rule of ops whose results carry no signal: comparisons, indices, constants."""

IN_PLACE_OPERATORS = frozenset(
    ["iadd", "isub", "imul", "itruediv", "ifloordiv", "ipow", "imatmul", "imod", "iand", "ior", "ixor"]
)

RANDOM_OPS = frozenset(
    [
        *(
            "rand",
            "randn",
            "randint",
            "randperm",
            "rand_like",
            "randn_like",
            "randint_like",
            "normal",
            "uniform",
        ),
        *("exponential", "bernoulli", "multinomial", "poisson", "gumbel_softmax", "rrelu"),
    ]
)
"""Ops that draw random numbers, except dropout."""

UNINITIALIZED_OPS = frozenset(
    ["empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided"]
)
"""Ops that allocate memory without writing it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpRow:
    """Ops that treat a signal alike."""

    kind: str
    """What the ops do to a signal."""
    names: tuple[str, ...]
    """Canonical names (see `canonical_name`)."""
    aliases: dict[str, str]
    """Canonical name of each other spelling."""
    scale_rule: str | None
    """How scale passes; None if nobody worked it out: the inputs are held fixed, and the op is reported."""
    moment_rule: str | None
    """How moments pass; `NEUTRAL` if the results carry no signal, None if unknown and reported."""
    bounds: tuple[float, float] | None
    """Range of a bounded activation."""

    @property
    def is_layout(self) -> bool:
        """Whether the ops only move elements."""
        return self.kind in LAYOUT_KINDS

    @property
    def reads_shapes(self) -> bool:
        """Whether the ops read the shape of their input and none of its elements, as `zeros_like` does."""
        return self.kind == "create" and self.scale_rule == "scale_free"


def _row(
    kind: str,
    names: str,
    *,
    scale: str | None = None,
    moments: str | None = None,
    bounds: tuple[float, float] | None = None,
) -> OpRow:
    """One row; `names` are separated by blanks, and each may be followed by its aliases: `mul|multiply|rmul`."""
    spellings = [word.split("|") for word in names.split()]
    return OpRow(
        kind=kind,
        names=tuple(canonical for canonical, *_ in spellings),
        aliases={alias: canonical for canonical, *others in spellings for alias in others},
        scale_rule=scale,
        moment_rule=moments,
        bounds=bounds,
    )


_ACTIVATIONS = (
    _row("activation", "relu leaky_relu", scale="homogeneous", moments="pointwise"),
    _row("activation", "prelu", scale="prelu", moments="prelu"),
    _row("activation", "rrelu", scale="homogeneous", moments="prelu"),
    _row("activation", "relu6 hardshrink softshrink threshold", moments="pointwise"),
    _row("activation", "hardtanh", moments="pointwise", bounds=(-1.0, 1.0)),
    _row(
        "activation",
        """elu selu celu gelu silu|swish mish softplus logsigmoid|log_sigmoid hardswish tanhshrink
        logit|special_logit""",
        scale="fixed",
        moments="pointwise",
    ),
    _row(
        "activation",
        "sigmoid|special_expit hardsigmoid",
        scale="fixed",
        moments="pointwise",
        bounds=(0.0, 1.0),
    ),
    _row(
        "activation",
        "tanh softsign erf|special_erf",
        scale="fixed",
        moments="pointwise",
        bounds=(-1.0, 1.0),
    ),
    _row("gate", "glu", scale="fixed", moments="glu"),
    _row("softmax", "softmax|special_softmax softmin safe_softmax", scale="fixed", moments="softmax"),
    _row("softmax", "log_softmax|special_log_softmax", scale="fixed", moments="log_softmax"),
    _row("softmax", "gumbel_softmax sparsemax", scale="fixed"),
    _row("attention", "scaled_dot_product_attention", scale="attention", moments="attention"),
    _row(
        "dropout",
        "dropout dropout1d dropout2d dropout3d feature_dropout native_dropout",
        scale="homogeneous",
        moments="dropout",
    ),
    _row("dropout", "alpha_dropout feature_alpha_dropout", scale="fixed"),
)

# Functions of single elements that models spell activations and norms with.
_POINTWISE = (
    _row("pointwise", "abs|absolute nan_to_num", scale="homogeneous", moments="pointwise"),
    _row("pointwise", "sign", scale="scale_free", moments="pointwise"),
    _row("pointwise", "square", scale="square", moments="pointwise"),
    _row("pointwise", "sqrt", scale="square_root", moments="pointwise"),
    _row("pointwise", "rsqrt", scale="inverse_root", moments="pointwise"),
    _row("pointwise", "reciprocal", scale="inverse", moments="pointwise"),
    _row("pointwise", "pow|rpow float_power", scale="power", moments="pointwise"),
    _row("pointwise", "clamp clip clamp_min clamp_max", scale="clamp", moments="pointwise"),
    _row("pointwise", "maximum minimum fmax fmin hypot", scale="same_scale", moments="pointwise"),
    _row("pointwise", "where", scale="same_scale", moments="mask"),
    _row("pointwise", "masked_fill", scale="masked_fill", moments="mask"),
    _row("pointwise", "atan2", scale="compare", moments="pointwise"),
    _row("pointwise", "round floor ceil trunc frac fmod remainder|mod", moments="pointwise"),
    _row(
        "pointwise",
        """exp exp2|special_exp2 expm1|special_expm1 log log2 log10 log1p|special_log1p sin cos tan atan asinh acosh
        atanh sinh cosh asin acos erfc|special_erfc erfinv|special_erfinv lgamma|special_gammaln
        digamma|special_digamma|special_psi sinc|special_sinc logaddexp xlogy|special_xlogy""",
        scale="fixed",
        moments="pointwise",
    ),
)

# Sums and products: what they are depends on their operands (see `resolve_kind`).
_ARITHMETIC = (
    _row("add", "add|radd", scale="add", moments="add"),
    _row("add", "sub|subtract rsub", scale="subtract", moments="add"),
    _row("add", "addcmul addcdiv", scale="multiply_add", moments="composite"),
    _row("add", "lerp", scale="same_scale", moments="composite"),
    _row("multiply", "mul|multiply|rmul", scale="multiply", moments="multiply"),
    _row("multiply", "div|divide|true_divide|truediv|rtruediv|rdiv", scale="divide", moments="multiply"),
    _row("multiply", "neg|negative", scale="homogeneous", moments="negative"),
    _row("multiply", "floor_divide|floordiv", moments="composite"),
)

_LAYERS = (
    _row("weight", "linear", scale="linear", moments="linear"),
    _row("weight", "bilinear", scale="bilinear", moments="bilinear"),
    _row(
        "weight",
        "conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d",
        scale="linear",
        moments="convolution",
    ),
    _row("weight", "convolution conv_tbc", scale="linear"),
    _row("matmul", "matmul|rmatmul mm bmm mv dot inner", scale="matrix_product", moments="matmul"),
    _row("matmul", "einsum", scale="matrix_product", moments="einsum"),
    _row("matmul", "vdot outer ger tensordot chain_matmul kron", scale="matrix_product"),
    _row("matmul", "grouped_mm", scale="matrix_product", moments="grouped_matmul"),
    _row("matmul", "addmm addmv baddbmm", scale="matrix_product_add", moments="addmm"),
    _row("matmul", "addbmm", scale="matrix_product_add"),
    _row("matmul", "linalg_solve_triangular"),
    _row(
        "recurrent",
        "lstm gru rnn_tanh rnn_relu lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell",
    ),
    _row("embedding", "embedding", scale="embedding", moments="embedding"),
    _row("embedding", "embedding_bag", scale="embedding"),
    _row("norm", "layer_norm", scale="normalization", moments="layer_norm"),
    _row("norm", "rms_norm", scale="normalization", moments="rms_norm"),
    _row("norm", "group_norm", scale="normalization", moments="group_norm"),
    _row("norm", "instance_norm", scale="normalization", moments="instance_norm"),
    _row("norm", "batch_norm", scale="batch_norm", moments="batch_norm"),
    _row("norm", "native_layer_norm", moments="layer_norm"),
    _row("norm", "native_batch_norm", moments="batch_norm"),
    _row("norm", "cudnn_batch_norm local_response_norm"),
    _row("norm", "normalize", scale="direction", moments="normalize"),
    _row("norm", "weight_norm weight_norm_interface", scale="weight_norm"),
)

_REDUCTIONS = (
    _row("reduce", "mean sum nanmean nansum", scale="homogeneous", moments="mean"),
    _row("reduce", "std", scale="homogeneous", moments="variance"),
    _row("reduce", "var", scale="square", moments="variance"),
    _row("reduce", "var_mean std_mean", scale="variance_and_mean", moments="variance"),
    _row(
        "reduce",
        "norm|linalg_norm|frobenius_norm vector_norm|linalg_vector_norm",
        scale="homogeneous",
        moments="vector_norm",
    ),
    _row("reduce", "max min", scale="same_scale", moments="extreme"),
    _row("reduce", "amax amin median", scale="homogeneous"),
    _row("reduce", "cumsum", scale="homogeneous", moments="cumsum"),
    _row("reduce", "logsumexp|special_logsumexp", scale="fixed", moments="logsumexp"),
    _row("reduce", "cosine_similarity", scale="direction"),
    _row("reduce", "cdist pairwise_distance diff", scale="same_scale"),
    _row("reduce", "all any is_all_true is_any_true", scale="scale_free"),
    _row("reduce", "prod cumprod segment_reduce"),
    _row(
        "pool",
        "avg_pool1d avg_pool2d avg_pool3d adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d",
        scale="homogeneous",
        moments="average_pool",
    ),
    _row(
        "pool",
        """max_pool1d max_pool2d max_pool3d max_pool1d_with_indices max_pool2d_with_indices max_pool3d_with_indices
        adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d""",
        scale="homogeneous",
        moments="max_pool",
    ),
    _row("pool", "interpolate upsample", scale="homogeneous", moments="interpolate"),
    _row("pool", "lp_pool1d lp_pool2d fractional_max_pool2d max_unpool2d", scale="homogeneous"),
    _row("pool", "grid_sample", scale="grid_sample"),
)

_LOSSES = (
    _row("loss", "cross_entropy cross_entropy_loss", scale="fixed", moments="cross_entropy"),
    _row("loss", "nll_loss nll_loss_nd nll_loss2d", scale="fixed", moments="nll_loss"),
    _row("loss", "mse_loss", scale="fixed", moments="mse_loss"),
    _row("loss", "l1_loss smooth_l1_loss huber_loss", scale="fixed", moments="robust_loss"),
    _row("loss", "binary_cross_entropy_with_logits", scale="fixed", moments="binary_cross_entropy"),
    _row("loss", "kl_div", scale="fixed", moments="kl_div"),
    _row(
        "loss",
        """binary_cross_entropy poisson_nll_loss gaussian_nll_loss ctc_loss cosine_embedding_loss margin_ranking_loss
        hinge_embedding_loss triplet_margin_loss multi_margin_loss multilabel_margin_loss multilabel_soft_margin_loss
        soft_margin_loss linear_cross_entropy""",
        scale="fixed",
    ),
)

# Ops that move elements without changing them, select some of them, or join tensors.
_SHAPES = (
    _row(
        "layout",
        """view view_as reshape reshape_as flatten unflatten ravel squeeze unsqueeze contiguous clone real alias
        requires_grad as_tensor asarray""",
        scale="homogeneous",
        moments="reshape",
    ),
    _row(
        "layout",
        "transpose permute movedim moveaxis swapaxes swapdims t T mT H mH",
        scale="homogeneous",
        moments="transpose",
    ),
    _row("layout", "detach data", scale="homogeneous", moments="detach"),
    _row(
        "layout",
        "channel_shuffle pixel_shuffle pixel_unshuffle flip roll rot90",
        scale="homogeneous",
        moments="shuffle",
    ),
    _row("layout", "to_sparse to_dense values", scale="homogeneous"),
    _row("cast", "to type type_as float half bfloat16 double cpu cuda", scale="cast", moments="reshape"),
    _row("cast", "int long bool byte", scale="cast"),
    _row("select", "getitem index", scale="homogeneous", moments="getitem"),
    _row("select", "select", scale="homogeneous", moments="select"),
    _row("select", "unbind", scale="homogeneous", moments="unbind"),
    _row(
        "select",
        """narrow slice chunk split split_with_sizes tensor_split hsplit vsplit dsplit index_select take_along_dim
        gather tril triu""",
        scale="homogeneous",
        moments="subset",
    ),
    _row("select", "unfold as_strided", scale="homogeneous", moments="windows"),
    _row(
        "select",
        "take masked_select diagonal diag imag view_as_real view_as_complex",
        scale="homogeneous",
    ),
    _row("select", "nonzero", scale="scale_free"),
    _row("join", "cat concat concatenate hstack vstack dstack", scale="same_scale", moments="cat"),
    _row("join", "stack", scale="same_scale", moments="stack"),
    _row("join", "pad", scale="pad", moments="pad"),
    _row("join", "expand expand_as broadcast_to", scale="homogeneous", moments="expand"),
    _row("join", "repeat repeat_interleave tile", scale="homogeneous", moments="repeat"),
    _row("join", "copy fill zero", scale="overwrite", moments="overwrite"),
    _row(
        "join",
        "setitem index_put index_copy index_fill scatter masked_scatter",
        scale="same_scale",
        moments="overwrite",
    ),
    _row("join", "index_add scatter_add", scale="same_scale", moments="accumulate"),
    _row("join", "scatter_reduce broadcast_tensors meshgrid block_diag nested_tensor", scale="same_scale"),
    _row("join", "fold diag_embed", scale="homogeneous"),
)

# Ops that make constants, indices or truth values, and transforms.
_OTHERS = (
    _row(
        "create",
        "zeros ones full arange linspace eye rand randn new_tensor empty empty_strided empty_permuted",
        scale="create",
        moments="create",
    ),
    _row(
        "create",
        "logspace randint randperm from_numpy tril_indices triu_indices",
        scale="create",
        moments=NEUTRAL,
    ),
    _row(
        "create",
        """zeros_like ones_like full_like rand_like randn_like empty_like new_zeros new_ones new_full new_empty
        new_empty_strided""",
        scale="scale_free",
        moments="create",
    ),
    _row("create", "randint_like", scale="scale_free", moments=NEUTRAL),
    _row("create", "tensor scalar_tensor", scale="fixed", moments="create"),
    _row("create", "normal uniform exponential", moments="create"),
    _row("create", "bernoulli multinomial poisson", moments=NEUTRAL),
    _row(
        "index",
        "eq ne|not_equal lt|less le|less_equal gt|greater ge|greater_equal isclose",
        scale="compare",
        moments=NEUTRAL,
    ),
    _row(
        "index",
        """logical_and logical_or logical_not logical_xor bitwise_and bitwise_or bitwise_not bitwise_xor and or invert
        xor lshift rshift isnan isinf isfinite isin argmax argmin argsort one_hot bincount""",
        scale="scale_free",
        moments=NEUTRAL,
    ),
    _row("index", "topk", scale="homogeneous", moments="topk"),
    _row("index", "sort", scale="homogeneous", moments="subset"),
    _row("index", "kthvalue mode cummax cummin", scale="homogeneous", moments=NEUTRAL),
    _row("index", "unique searchsorted bucketize histc", moments=NEUTRAL),
    _row(
        "transform",
        """fft_fft fft_ifft fft_rfft fft_irfft fft_fft2 fft_ifft2 fft_rfft2 fft_irfft2 fft_fftn fft_ifftn fft_rfftn
        fft_irfftn stft istft conj""",
        scale="homogeneous",
    ),
    _row("transform", "resolve_conj", scale="homogeneous", moments="reshape"),
    _row("transform", "complex", scale="same_scale"),
    _row("transform", "angle", scale="scale_free"),
    _row("transform", "polar"),
)

OP_TABLE: tuple[OpRow, ...] = (
    *_ACTIVATIONS,
    *_POINTWISE,
    *_ARITHMETIC,
    *_LAYERS,
    *_REDUCTIONS,
    *_LOSSES,
    *_SHAPES,
    *_OTHERS,
)


def canonical_name(spelling: str) -> str:
    """The op's canonical name for any spelling: `add`, `add_`, `__iadd__` and `__radd__` are all "add"."""
    name = spelling.strip("_")
    if name in IN_PLACE_OPERATORS and spelling.startswith("__"):
        name = name[1:]
    return _ALIASES.get(name, name)


def find_op(name: str) -> OpRow | None:
    """The row of a canonical name; None if the table does not list it."""
    return _ROWS.get(name)


def resolve_kind(name: str, roles: Sequence[Role]) -> str | None:
    """The kind of one executed op, which for sums and products depends on what it reads; None if it is not listed.

    `x @ W` is a weight, `q @ k` a product; `x * gamma` or `x * 0.5` is a scale, `a * b` a product;
    `x + f(x)` is an add, `x + bias` a bias.
    """
    row = find_op(name)
    if row is None:
        return None
    signals = roles.count("signal")
    if row.kind == "matmul":
        return "weight" if signals == 1 and "parameter" in roles else "product"
    if row.kind == "multiply":
        return "product" if signals > 1 else "scale"
    if row.kind == "add":
        return "add" if signals > 1 else "bias"
    return row.kind


def index_rows(rows: Iterable[OpRow]) -> dict[str, OpRow]:
    """The row of each canonical name; raises ValueError if two rows list the same name."""
    index: dict[str, OpRow] = {}
    for row in rows:
        for name in row.names:
            if name in index:
                raise ValueError(f"two rows list the op {name!r}: kinds {index[name].kind} and {row.kind}")
            index[name] = row
    return index


_ROWS = index_rows(OP_TABLE)
_ALIASES = {alias: name for row in OP_TABLE for alias, name in row.aliases.items()}
