"""What can be wrong with a feed-forward network: recipes of the families mlp, conv and resnet."""

from __future__ import annotations

from benchmarks.verdicts.recipe import Fields, Recipe, one_of, real, whole

SEED = one_of(*range(100))
OPTIMIZERS = one_of("adam", "adamw", "momentum", "sgd")
USUAL_PACE = one_of(1.0, 2.0)
SLOW_PACE = one_of(0.3, 1.0)  # deep networks are given smaller rates
TOO_FAST = real(30, 1000)
TOO_SLOW = real(1e-4, 1e-2)
HEALTHY: Fields = {"flaw": "none", "flaw_size": 0.0}
SMOOTH = one_of("relu", "gelu", "elu", "silu")

_RATES = (
    Recipe(cause="rate-too-large", count=5, sick={"pace": TOO_FAST}, twin={"pace": USUAL_PACE}),
    Recipe(cause="rate-too-small", count=4, sick={"pace": TOO_SLOW}, twin={"pace": USUAL_PACE}),
)
_HEAD = Recipe(cause="softmax-twice", count=2, sick={"flaw": "softmax-twice"}, twin=HEALTHY)
_BFLOAT = Recipe(
    cause="bf16-lost-updates",
    count=3,
    sick={"dtype": "bfloat16", "optimizer": one_of("sgd", "adam"), "pace": real(0.003, 0.1)},
    twin={"pace": 1.0},
)
_DECAY = Recipe(
    cause="decay-too-large",
    count=2,
    sick={"optimizer": one_of("adamw", "sgd"), "weight_decay": real(3, 30), "pace": 1.0},
    twin={"weight_decay": 1e-4},
)

MLP_BASE: Fields = {
    "data": one_of("digits", "digits", "digits", "moons", "circles", "blobs"),
    "depth": whole(2, 12),
    "width": one_of(16, 32, 64),
    "activation": one_of("relu", "gelu", "tanh"),
    "init": "critical",
    "optimizer": OPTIMIZERS,
    "pace": USUAL_PACE,
    "seed": SEED,
}
CRITICAL: Fields = {"init": "critical", "gain": None}

MLP = (
    *_RATES,
    _HEAD,
    _BFLOAT,
    _DECAY,
    Recipe(
        cause="default-init",
        count=6,
        sick={"depth": whole(6, 200), "activation": SMOOTH, "init": "default", "pace": SLOW_PACE},
        twin=CRITICAL,
    ),
    Recipe(
        cause="gain-too-small",
        count=4,
        sick={"depth": whole(4, 100), "activation": "relu", "init": "gain", "gain": real(0.1, 1.4)},
        twin=CRITICAL,
    ),
    Recipe(
        cause="gain-too-large",
        count=4,
        sick={"depth": whole(4, 60), "activation": SMOOTH, "init": "gain", "gain": real(3, 20)},
        twin=CRITICAL,
    ),
    Recipe(
        cause="sigmoid-stack",
        count=5,
        sick={"depth": whole(3, 40), "activation": "sigmoid", "init": one_of("default", "xavier", "he")},
        twin={"activation": one_of("tanh", "elu"), "init": "critical"},
    ),
    Recipe(
        cause="chaotic-tanh",
        count=3,
        sick={"depth": whole(10, 100), "activation": "tanh", "init": "gain", "gain": real(2.5, 10)},
        twin=CRITICAL,
    ),
    Recipe(cause="cloned-layers", count=2, sick={"depth": whole(6, 60), "flaw": "cloned"}, twin=HEALTHY),
    Recipe(
        cause="constant-init",
        count=3,
        sick={"depth": whole(2, 8), "init": "constant", "gain": one_of(0.0, 0.5, 1.0)},
        twin=CRITICAL,
    ),
    Recipe(
        cause="dead-units",
        count=3,
        sick={"depth": whole(2, 8), "activation": "relu", "flaw": "dead-bias", "flaw_size": real(0.5, 8)},
        twin=HEALTHY,
    ),
    Recipe(
        cause="unscaled-residual",
        count=4,
        sick={"depth": whole(8, 200), "scheme": "unscaled", "init": "default", "pace": SLOW_PACE},
        twin={"scheme": one_of("residual-sqrt", "residual-linear", "pre", "rezero")},
    ),
    Recipe(
        cause="unscaled-residual",
        count=3,
        sick={"depth": whole(8, 100), "scheme": "unscaled", "init": "he", "pace": SLOW_PACE},
        twin={"scheme": one_of("residual-sqrt", "residual-linear", "deepnorm", "fixup")},
    ),
    Recipe(
        cause="coherent-branches",
        count=3,
        sick={
            "depth": whole(6, 60),
            "scheme": "coherent",
            "init": one_of("he", "default"),
            "pace": SLOW_PACE,
        },
        twin={"scheme": one_of("residual-sqrt", "pre")},
    ),
    Recipe(
        cause="batch-norm-stack",
        count=3,
        sick={"depth": whole(20, 120), "norm": "batch", "init": "default", "activation": "relu"},
        twin={"depth": whole(2, 10)},
    ),
    Recipe(cause="input-scale", count=3, sick={"input_scale": real(100, 1e4)}, twin={"input_scale": 1.0}),
    Recipe(cause="input-scale", count=2, sick={"input_scale": real(1e-5, 1e-2)}, twin={"input_scale": 1.0}),
    Recipe(cause="frozen-matrices", count=2, sick={"flaw": "frozen-matrices"}, twin=HEALTHY),
    Recipe(cause="none", count=3, sick={"depth": whole(20, 100), "norm": "layer", "pace": SLOW_PACE}),
)

CONV_BASE: Fields = {
    "data": "digits",
    "depth": whole(2, 8),
    "width": one_of(8, 12),
    "activation": one_of("relu", "gelu", "tanh"),
    "init": "critical",
    "optimizer": OPTIMIZERS,
    "pace": USUAL_PACE,
    "batch": 32,
    "seed": SEED,
}

CONV = (
    *_RATES,
    _HEAD,
    _BFLOAT,
    Recipe(
        cause="default-init",
        count=5,
        sick={"depth": whole(5, 40), "activation": SMOOTH, "init": "default"},
        twin=CRITICAL,
    ),
    Recipe(
        cause="gain-too-small",
        count=4,
        sick={"depth": whole(4, 40), "activation": "relu", "init": "gain", "gain": real(0.1, 1.4)},
        twin=CRITICAL,
    ),
    Recipe(
        cause="gain-too-large",
        count=4,
        sick={"depth": whole(4, 30), "activation": SMOOTH, "init": "gain", "gain": real(3.5, 20)},
        twin=CRITICAL,
    ),
    Recipe(
        cause="sigmoid-stack",
        count=4,
        sick={"depth": whole(3, 20), "activation": "sigmoid", "init": one_of("default", "xavier")},
        twin={"activation": "relu", "init": "critical"},
    ),
    Recipe(
        cause="constant-init",
        count=2,
        sick={"depth": whole(2, 6), "init": "constant", "gain": one_of(0.0, 1.0)},
        twin=CRITICAL,
    ),
    Recipe(
        cause="dead-units",
        count=3,
        sick={"activation": "relu", "flaw": "dead-bias", "flaw_size": real(0.3, 5)},
        twin=HEALTHY,
    ),
    Recipe(
        cause="batch-norm-stack",
        count=3,
        sick={"depth": whole(20, 50), "norm": "batch", "init": "default", "activation": "relu"},
        twin={"depth": whole(2, 10)},
    ),
    Recipe(cause="cloned-layers", count=1, sick={"depth": whole(6, 30), "flaw": "cloned"}, twin=HEALTHY),
    Recipe(cause="input-scale", count=2, sick={"input_scale": real(100, 1e4)}, twin={"input_scale": 1.0}),
    Recipe(cause="input-scale", count=2, sick={"input_scale": real(1e-5, 1e-2)}, twin={"input_scale": 1.0}),
)

RESNET_BASE: Fields = {
    "data": "digits",
    "depth": whole(2, 12),
    "width": 8,
    "scheme": one_of("pre", "pre", "res-post/v1", "residual-sqrt", "skipinit", "fixup"),
    "optimizer": OPTIMIZERS,
    "pace": USUAL_PACE,
    "batch": 32,
    "seed": SEED,
}
SOUND = one_of("pre", "residual-sqrt", "skipinit", "fixup", "rezero", "residual-linear")

RESNET = (
    *_RATES,
    *_RATES,
    _HEAD,
    _BFLOAT,
    _DECAY,
    Recipe(
        cause="unscaled-residual",
        count=6,
        sick={"depth": whole(4, 40), "scheme": "unscaled", "init": one_of("default", "he")},
        twin={"scheme": SOUND},
    ),
    Recipe(
        cause="unscaled-residual",
        count=3,
        sick={"depth": whole(4, 30), "scheme": "unscaled", "init": "gain", "gain": real(2.5, 8)},
        twin={"scheme": SOUND},
    ),
    Recipe(
        cause="plain-stack", count=3, sick={"depth": whole(6, 30), "scheme": "none"}, twin={"scheme": SOUND}
    ),
    Recipe(
        cause="deepnorm-wrong-way",
        count=2,
        sick={"depth": whole(6, 30), "scheme": "deepnorm-wrong-way"},
        twin={"scheme": "deepnorm"},
    ),
    Recipe(
        cause="head-scale",
        count=2,
        sick={"scheme": "pre", "flaw": "head-scale", "flaw_size": real(10, 300)},
        twin=HEALTHY,
    ),
    Recipe(cause="cloned-layers", count=2, sick={"depth": whole(6, 24), "flaw": "cloned"}, twin=HEALTHY),
    Recipe(
        cause="input-scale",
        count=2,
        sick={"scheme": SOUND, "input_scale": real(100, 1e4)},
        twin={"input_scale": 1.0},
    ),
    Recipe(cause="frozen-matrices", count=1, sick={"flaw": "frozen-matrices"}, twin=HEALTHY),
    Recipe(cause="none", count=3, sick={"depth": whole(12, 40), "scheme": SOUND}),
)

DEEP_MLP = (
    Recipe(
        cause="default-init",
        count=3,
        sick={"depth": whole(120, 200), "init": "default", "pace": 0.3},
        twin={"scheme": "residual-linear"},
    ),
    Recipe(
        cause="unscaled-residual",
        count=3,
        sick={"depth": whole(120, 200), "scheme": "unscaled", "init": "default", "pace": 0.3},
        twin={"scheme": one_of("residual-sqrt", "rezero")},
    ),
    Recipe(cause="none", count=3, sick={"depth": whole(120, 200), "scheme": "pre", "pace": 0.3}),
)
