r"""The table of residual schemes, one row per scheme. To add a scheme, add a row.

Throughout, $S$ is the number of residual **sub-layers** of the stack ($2N$ for an encoder or a language model
of $N$ blocks, $3M$ for a decoder with cross-attention of $M$ blocks, $N$ for an MLP or ResNet of $N$ blocks)
and $l$ is the number of a block, from 1. Papers count blocks or sub-layers: `Scheme.counts` says which.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from types import MappingProxyType

from leadline.errors import InputError
from leadline.nn import depth_laws
from leadline.nn.scheme import Role, Scheme

# All matrices except query and key.
MATRICES: tuple[Role, ...] = ("value", "output", "fc1", "fc2")
LAST: tuple[Role, ...] = ("output", "fc2")
INNER: tuple[Role, ...] = ("value", "fc1")
# Cited: the depth of GPT-2 small and BERT base, at which plain pre-norm is common practice.
MAX_SHALLOW_BLOCKS = 12


_ROWS = (
    Scheme(
        name="none",
        summary="No skip and no norm: a plain stack.",
        norms=(),
        has_skip=False,
        final_norm=False,
        paper="no paper: the control",
        where="",
    ),
    Scheme(
        name="post",
        summary="LN(x + f(x)): the original Transformer.",
        norms=("post",),
        final_norm=False,
        paper="Vaswani et al. 2017, Attention is all you need, arXiv 1706.03762",
        where="LayerNorm(x + Sublayer(x)), encoder and decoder stacks",
    ),
    Scheme(
        name="pre",
        summary="x + f(LN(x)), with a norm after the last block.",
        norms=("pre",),
        paper="Xiong et al. 2020, On layer normalization in the Transformer architecture, arXiv 2002.04745",
        where="the Pre-LN Transformer",
    ),
    Scheme(
        name="deepnorm",
        summary="LN(S^(1/4) x + f(x)); V, O, fc1, fc2 start times (4S)^(-1/4) on Xavier. For SGD.",
        norms=("post",),
        skip=depth_laws.deepnorm_skip,
        gain=depth_laws.deepnorm_gain,
        gain_roles=MATRICES,
        base="xavier",
        final_norm=False,
        counts="blocks",
        calibrated_for="sgd",
        exponent=0.5,
        bias_exponent=0.25,
        paper="Wang et al. 2022, DeepNet: scaling Transformers to 1,000 layers, arXiv 2203.00555",
        where="the table of constants next to DeepNorm's code; theorems 4.2 and 4.3",
    ),
    Scheme(
        name="deepnorm-adam",
        summary="LN(S^(1/2) x + f(x)); V, O, fc1, fc2 start times S^(-1/2) on Xavier. For Adam.",
        norms=("post",),
        skip=depth_laws.sqrt_sublayers,
        gain=depth_laws.inverse_sqrt_sublayers,
        gain_roles=MATRICES,
        base="xavier",
        final_norm=False,
        counts="blocks",
        calibrated_for="adam",
        exponent=1.0,
        bias_exponent=0.5,
        paper="Su Jianlin 2022, kexue.fm archives 8978",
        where="the Adam case: alpha = (2N)^(1/2), lambda = (2N)^(-1/2)",
    ),
    Scheme(
        name="residual-sqrt",
        summary="x + S^(-1/2) f(LN(x)).",
        norms=("pre",),
        branch=depth_laws.inverse_sqrt_sublayers,
        counts="sub-layers",
        calibrated_for="sgd",
        exponent=0.5,
        paper="Yang et al. 2023, Tensor Programs VI, arXiv 2310.02244",
        where="Depth-muP: branch multiplier L^(-1/2)",
    ),
    Scheme(
        name="residual-linear",
        summary="x + S^(-1) f(LN(x)): CompleteP's branch factor. For Adam.",
        norms=("pre",),
        branch=depth_laws.inverse_sublayers,
        counts="sub-layers",
        calibrated_for="adam",
        exponent=1.0,
        paper="Dey et al. 2025, Don't be lazy (CompleteP), arXiv 2505.01618",
        where="the parametrization table, alpha = 1",
    ),
    Scheme(
        name="keel",
        summary="LN(S x + f(LN(x))). For Adam.",
        norms=("pre", "post"),
        skip=depth_laws.sublayers,
        final_norm=False,
        counts="sub-layers",
        calibrated_for="adam",
        exponent=1.0,
        paper="Chen and Wei 2026, Post-LayerNorm is back (Keel), arXiv 2601.19895",
        where="the block equation, alpha = L = all sub-layers",
    ),
    Scheme(
        name="peri",
        summary="x + LN(f(LN(x))), with a norm on the embeddings too.",
        norms=("pre", "out"),
        embedding_norm=True,
        paper="Kim et al. 2025, Peri-LN, arXiv 2502.02732",
        where="the Peri-LN layer: norms around each module, on the embedding and at the end",
    ),
    Scheme(
        name="sandwich",
        summary="x + LN(f(LN(x))).",
        norms=("pre", "out"),
        paper="Ding et al. 2021, CogView, arXiv 2105.13290",
        where="Sandwich-LN",
    ),
    Scheme(
        name="res-post",
        summary="x + LN(f(x)): the norm at the end of the branch, as in ResNet v1 and Swin v2.",
        norms=("out",),
        paper="Liu et al. 2021, Swin Transformer V2, arXiv 2111.09883; He et al. 2015, arXiv 1512.03385",
        where="Swin V2: residual post-norm; ResNet: the block's last batch norm, before the sum",
    ),
    Scheme(
        name="layernorm-scaling",
        summary="x + f(LN(x) / sqrt(l)), l the number of the block. Do not add a scaled initialization.",
        norms=("pre",),
        norm_scale=depth_laws.inverse_sqrt_block_number,
        counts="blocks",
        paper="Sun et al. 2025, The curse of depth in large language models, arXiv 2502.05795",
        where="LayerNorm Scaling, and the authors' code: 1/sqrt(layer number from 1)",
    ),
    Scheme(
        name="gpt2-init",
        summary="x + f(LN(x)); O and fc2 start times S^(-1/2).",
        norms=("pre",),
        gain=depth_laws.inverse_sqrt_sublayers,
        gain_roles=LAST,
        counts="sub-layers",
        paper="Radford et al. 2019, Language models are unsupervised multitask learners",
        where="the model section: residual layers scaled by 1/sqrt(N) at initialization",
    ),
    Scheme(
        name="layerscale",
        summary="x + diag(lambda) f(LN(x)), lambda learned, small at the start.",
        norms=("pre",),
        branch=depth_laws.layerscale_start,
        learned="vector",
        counts="blocks",
        paper="Touvron et al. 2021, Going deeper with image Transformers, arXiv 2103.17239",
        where="LayerScale, with its initial values by depth; 1e-5 at 24 and 1e-6 at 36 and 48 in the authors' code",
    ),
    Scheme(
        name="rezero",
        summary="x + a f(x), a learned, 0 at the start; no norm.",
        norms=(),
        branch=depth_laws.zero,
        learned="scalar",
        final_norm=False,
        identity_at_init=True,
        paper="Bachlechner et al. 2020, ReZero is all you need, arXiv 2003.04887",
        where="x + alpha_i F(x), alpha_i = 0; the authors' code shares alpha between the sub-layers of a block",
    ),
    Scheme(
        name="skipinit",
        summary="x + a f(x), a learned, 0 at the start, at the end of a branch without norms.",
        norms=(),
        branch=depth_laws.zero,
        learned="scalar",
        final_norm=False,
        identity_at_init=True,
        paper="De and Smith 2020, Batch normalization biases residual blocks, arXiv 2002.10444",
        where="SkipInit",
    ),
    Scheme(
        name="fixup",
        summary="x + a f(x + b) + c, no norm; inner matrices start times S^(-1/(2m-2)), last and head 0.",
        norms=(),
        gain=depth_laws.fixup_gain,
        gain_roles=INNER,
        zero_roles=LAST,
        zero_head=True,
        learned="scalar",
        scalar_biases=True,
        final_norm=False,
        counts="sub-layers",
        calibrated_for="sgd",
        exponent=0.5,
        bias_exponent=0.0,
        identity_at_init=True,
        paper="Zhang, Dauphin and Ma 2019, Fixup initialization, arXiv 1901.09321",
        where="the three rules; authors' code for 2 convolutions per branch: S^(-1/2), last and head zero",
    ),
    Scheme(
        name="t-fixup",
        summary="x + f(x), no norm; V, O, fc1, fc2 start times 0.67 N^(-1/4), embeddings (9N)^(-1/4).",
        norms=(),
        gain=depth_laws.t_fixup_gain,
        embedding_gain=depth_laws.t_fixup_embedding_gain,
        gain_roles=MATRICES,
        base="xavier",
        final_norm=False,
        counts="blocks",
        calibrated_for="adam",
        paper="Huang et al. 2020, Improving Transformer optimization through better initialization, ICML",
        where="the rules, as in the authors' code; for a lone decoder (no paper) the rule's 3S with S = 2M",
    ),
    Scheme(
        name="admin",
        summary="LN(omega_i x + f(x)), omega_i learned, set by one profiling pass (`profile_admin_`).",
        norms=("post",),
        skip=depth_laws.admin_skip,
        learned="skip",
        final_norm=False,
        counts="sub-layers",
        needs_profile=True,
        paper="Liu et al. 2020, Understanding the difficulty of training Transformers, arXiv 2004.08249",
        where="Admin: profiling and initialization; one vector omega per sub-layer, as in the authors' code",
    ),
    Scheme(
        name="magneto",
        summary="x + f(LN(x)) with a second LN before O and fc2; V, O, fc1, fc2 start times sqrt(ln S).",
        norms=("pre", "inner"),
        gain=depth_laws.magneto_gain,
        gain_roles=MATRICES,
        base="xavier",
        counts="blocks",
        paper="Wang et al. 2022, Foundation Transformers (Magneto), arXiv 2210.06423",
        where="Sub-LN, and the authors' code (torchscale): gains sqrt(log 2N)",
    ),
    Scheme(
        name="mix",
        summary="Post-LN in the first quarter of the blocks, Pre-LN after it.",
        norms=("pre",),
        early_norms=("post",),
        counts="blocks",
        paper="Li, Yin and Liu 2024, Mix-LN, arXiv 2412.13795",
        where="Mix-LN with a share of 0.25",
    ),
    Scheme(
        name="b2t",
        summary="Post-LN; the input of the block is added once more before its last norm.",
        norms=("post",),
        block_bypass=True,
        final_norm=False,
        paper="Takase et al. 2022, B2T connection, arXiv 2206.00330",
        where="the B2T connection; the authors' code also starts all weights times N^(-1/2), left out here",
    ),
    Scheme(
        name="hybrid",
        summary="x + attention(x) with normalized Q, K and V; then n + f(n) with n = LN(x).",
        norms=("entry",),
        attention_norms=(),
        qkv_norm=True,
        paper="Zhuo et al. 2025, HybridNorm, arXiv 2503.04598",
        where="QKV-norm in the attention; the post-norm of the feed-forward is written as the norm before its skip",
    ),
    Scheme(
        name="dyt",
        summary="x + f(DyT(x)) with DyT(x) = g tanh(a x) + b in place of every norm.",
        norms=("pre",),
        norm="tanh",
        paper="Zhu et al. 2025, Transformers without normalization, arXiv 2503.10622",
        where="Dynamic Tanh, a = 0.5 at the start",
    ),
    Scheme(
        name="gpas",
        summary="s - SiLU(a) sg(s) with s = x + f(LN(x)), a learned, 0 at the start.",
        norms=("pre",),
        join="attenuated",
        paper="Chen et al. 2025, Gradient-preserving activation scaling, arXiv 2506.22049",
        where="the method applied to Pre-LN, as in the authors' code, where both sub-layers of a block share one a",
    ),
    Scheme(
        name="ngpt",
        summary="N(n + |a| (N(f(x)) - n)) with n = N(x) = x / rms(x), a learned, 0.05 at the start.",
        norms=(),
        join="sphere",
        final_norm=False,
        paper="Loshchilov et al. 2024, nGPT: normalized Transformer, arXiv 2410.01131",
        where="the update of the hidden state, as in the authors' code; normalizing the matrices after each step and "
        "the smaller step of a (its parameter is a / 0.05 / sqrt(width) there) are left to the training loop",
    ),
    Scheme(
        name="dual",
        summary="x' = LN(x + f(x)) beside d' = d + f(x); x + LN(d) at the end.",
        norms=(),
        join="dual",
        final_norm=False,
        paper="Xie et al. 2023, ResiDual: Transformer with dual residual connections, arXiv 2304.14802",
        where="the two residual connections of Pre-Post-LN",
    ),
    Scheme(
        name="siamese",
        summary="f(LN(p + LN(y))) writes p' = LN(p + f / sqrt(2l)) and y' = y + f in block l.",
        norms=("pre",),
        join="siamese",
        paper="Li et al. 2026, SiameseNorm: breaking the barrier to reconciling Pre/Post-Norm, arXiv 2602.08064",
        where="the two streams and their norms as in the authors' code for DeiT",
    ),
    Scheme(
        name="value-residual",
        summary="Pre-LN; the values of every self-attention but the first are (V_1 + V) / 2.",
        norms=("pre",),
        value_share=0.5,
        paper="Zhou et al. 2024, Value residual learning (ResFormer), arXiv 2410.17897",
        where="the fixed shares of one half, as in the authors' code",
    ),
    Scheme(
        name="attention-residuals",
        summary="f(LN(h)) with h = sum_i softmax_i(w RMSNorm(v_i)) v_i over all earlier outputs, w = 0 at the start.",
        norms=("pre",),
        join="depth-attention",
        paper="Kimi Team 2026, Attention Residuals, arXiv 2603.15031",
        where="full attention residuals, one query per sub-layer",
    ),
    Scheme(
        name="attention-residuals-block",
        summary="The same over the sums of 8 groups of sub-layers: memory that does not grow with depth squared.",
        norms=("pre",),
        join="block-depth-attention",
        paper="Kimi Team 2026, Attention Residuals, arXiv 2603.15031",
        where="block attention residuals with about 8 blocks, as in the authors' pseudocode",
    ),
    Scheme(
        name="hyper-connections",
        summary="X' = A X + b f(LN(c X)) for 4 streams X; A = I, b = 1 and c one stream in turn at the start.",
        norms=("pre",),
        join="hyper",
        paper="Zhu et al. 2024, Hyper-connections, arXiv 2409.19606",
        where="static hyper-connections and their initialization",
    ),
    Scheme(
        name="mhc",
        summary="Hyper-connections with a doubly stochastic A by Sinkhorn iterations, c and b from sigmoids.",
        norms=("pre",),
        join="mhc",
        paper="Xie et al. 2025, mHC: manifold-constrained hyper-connections, arXiv 2512.24880",
        where="the three maps and their constraints; the biases at the start are chosen here to give pre-norm",
    ),
    Scheme(
        name="mhc-lite",
        summary="Hyper-connections with A a mean of all permutations, weighted by a softmax.",
        norms=("pre",),
        join="mhc-lite",
        paper="Yang and Gao 2026, mHC-lite, arXiv 2601.05732",
        where="the exact parametrization by permutation matrices; the start as for mhc",
    ),
)

SCHEMES: Mapping[str, Scheme] = MappingProxyType({row.name: row for row in _ROWS})


def find_scheme(scheme: str | Scheme | None, depth: int) -> Scheme:
    """The scheme of this name; a `Scheme` is returned as it is, and None means `recommended(depth)`."""
    if scheme is None:
        return SCHEMES[recommended(depth)]
    if isinstance(scheme, Scheme):
        return scheme
    if scheme in SCHEMES:
        return SCHEMES[scheme]
    near = difflib.get_close_matches(str(scheme), SCHEMES, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise InputError(
        expected="scheme: a name in leadline.nn.SCHEMES",
        got=f"scheme={scheme!r}",
        fix=f"{hint}Choose one of {', '.join(SCHEMES)}",
    )


def recommended(depth: int) -> str:
    """The name of the default scheme for `depth` blocks: `pre` up to 12 blocks, `residual-linear` for deeper stacks.

    At one learning rate, an Adam step changes the function by an amount that does not depend on depth with
    `residual-linear`, and that grows in proportion to it with `pre` (`benchmarks/update_exponents.py`).
    """
    return "pre" if depth <= MAX_SHALLOW_BLOCKS else "residual-linear"
