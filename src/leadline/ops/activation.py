"""Pointwise functions: activations, and the arithmetic that models spell activations and norms with."""

from leadline.ops.family import Family, words

ACTIVATION = Family(
    kind="activation",
    names=words(
        """relu relu6 leaky_relu prelu rrelu elu selu celu gelu silu mish softplus sigmoid logsigmoid tanh hardtanh
        hardsigmoid hardswish softsign tanhshrink hardshrink softshrink threshold erf logit"""
    ),
    bounds={
        "sigmoid": (0.0, 1.0),
        "hardsigmoid": (0.0, 1.0),
        "tanh": (-1.0, 1.0),
        "hardtanh": (-1.0, 1.0),
        "softsign": (-1.0, 1.0),
        "erf": (-1.0, 1.0),
    },
)
GATE = Family(kind="gate", names=words("glu"))
POINTWISE = Family(
    kind="pointwise",
    names=words(
        """pow float_power square sqrt rsqrt reciprocal exp exp2 expm1 log log2 log10 log1p abs sign sin cos tan atan
        atan2 asinh acosh atanh sinh cosh asin acos clamp clip clamp_min clamp_max maximum minimum fmax fmin round floor
        ceil trunc frac fmod remainder erfc erfinv lgamma digamma nan_to_num sinc where masked_fill
        hypot logaddexp xlogy"""
    ),
)
DROPOUT = Family(
    kind="dropout",
    names=words(
        "dropout dropout1d dropout2d dropout3d alpha_dropout feature_dropout feature_alpha_dropout native_dropout"
    ),
)
