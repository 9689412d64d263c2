"""Recipes of the families mlp, conv and resnet: what can be wrong with a feed-forward network."""

from __future__ import annotations

from benchmarks.verdicts.recipe import Fields, Recipe, log_uniform, log_uniform_int, one_of

SEED = one_of(*range(100))
OPTIMIZERS = one_of("adam", "adamw", "momentum", "sgd")
USUAL_RATE = one_of(1.0, 2.0)
# Heuristic: deep networks get smaller rates.
SMALL_RATE = one_of(0.3, 1.0)
TOO_LARGE_RATE = log_uniform(30, 1000)
TOO_SMALL_RATE = log_uniform(1e-4, 1e-2)
NO_FLAW: Fields = {"flaw": "none", "flaw_size": 0.0}
RECTIFIERS = one_of("relu", "gelu", "elu", "silu")

_RATES = (
    Recipe(
        cause="rate-too-large",
        count=5,
        sick={"rate_factor": TOO_LARGE_RATE},
        twin={"rate_factor": USUAL_RATE},
    ),
    Recipe(
        cause="rate-too-small",
        count=4,
        sick={"rate_factor": TOO_SMALL_RATE},
        twin={"rate_factor": USUAL_RATE},
    ),
)
_SOFTMAX_TWICE = Recipe(cause="softmax-twice", count=2, sick={"flaw": "softmax-twice"}, twin=NO_FLAW)
_BFLOAT = Recipe(
    cause="bf16-lost-updates",
    count=3,
    sick={"dtype": "bfloat16", "optimizer": one_of("sgd", "adam"), "rate_factor": log_uniform(0.003, 0.1)},
    twin={"rate_factor": 1.0},
)
_DECAY = Recipe(
    cause="decay-too-large",
    count=2,
    sick={"optimizer": one_of("adamw", "sgd"), "weight_decay": log_uniform(3, 30), "rate_factor": 1.0},
    twin={"weight_decay": 1e-4},
)

MLP_BASE: Fields = {
    "data": one_of("digits", "digits", "digits", "moons", "circles", "blobs"),
    "depth": log_uniform_int(2, 12),
    "width": one_of(16, 32, 64),
    "activation": one_of("relu", "gelu", "tanh"),
    "init": "critical",
    "optimizer": OPTIMIZERS,
    "rate_factor": USUAL_RATE,
    "seed": SEED,
}
CRITICAL: Fields = {"init": "critical", "gain": None}

MLP = (
    *_RATES,
    _SOFTMAX_TWICE,
    _BFLOAT,
    _DECAY,
    Recipe(
        cause="default-init",
        count=6,
        sick={
            "depth": log_uniform_int(6, 200),
            "activation": RECTIFIERS,
            "init": "default",
            "rate_factor": SMALL_RATE,
        },
        twin=CRITICAL,
    ),
    Recipe(
        cause="gain-too-small",
        count=4,
        sick={
            "depth": log_uniform_int(4, 100),
            "activation": "relu",
            "init": "gain",
            "gain": log_uniform(0.1, 1.4),
        },
        twin=CRITICAL,
    ),
    Recipe(
        cause="gain-too-large",
        count=4,
        sick={
            "depth": log_uniform_int(4, 60),
            "activation": RECTIFIERS,
            "init": "gain",
            "gain": log_uniform(3, 20),
        },
        twin=CRITICAL,
    ),
    Recipe(
        cause="sigmoid-stack",
        count=5,
        sick={
            "depth": log_uniform_int(3, 40),
            "activation": "sigmoid",
            "init": one_of("default", "xavier", "he"),
        },
        twin={"activation": one_of("tanh", "elu"), "init": "critical"},
    ),
    Recipe(
        cause="chaotic-tanh",
        count=3,
        sick={
            "depth": log_uniform_int(10, 100),
            "activation": "tanh",
            "init": "gain",
            "gain": log_uniform(2.5, 10),
        },
        twin=CRITICAL,
    ),
    Recipe(
        cause="cloned-layers", count=2, sick={"depth": log_uniform_int(6, 60), "flaw": "cloned"}, twin=NO_FLAW
    ),
    Recipe(
        cause="constant-init",
        count=3,
        sick={"depth": log_uniform_int(2, 8), "init": "constant", "gain": one_of(0.0, 0.5, 1.0)},
        twin=CRITICAL,
    ),
    Recipe(
        cause="dead-units",
        count=3,
        sick={
            "depth": log_uniform_int(2, 8),
            "activation": "relu",
            "flaw": "dead-bias",
            "flaw_size": log_uniform(0.5, 8),
        },
        twin=NO_FLAW,
    ),
    Recipe(
        cause="unscaled-residual",
        count=4,
        sick={
            "depth": log_uniform_int(8, 200),
            "scheme": "unscaled",
            "init": "default",
            "rate_factor": SMALL_RATE,
        },
        twin={"scheme": one_of("residual-sqrt", "residual-linear", "pre", "rezero")},
    ),
    Recipe(
        cause="unscaled-residual",
        count=3,
        sick={
            "depth": log_uniform_int(8, 100),
            "scheme": "unscaled",
            "init": "he",
            "rate_factor": SMALL_RATE,
        },
        twin={"scheme": one_of("residual-sqrt", "residual-linear", "deepnorm", "fixup")},
    ),
    Recipe(
        cause="coherent-branches",
        count=3,
        sick={
            "depth": log_uniform_int(6, 60),
            "scheme": "coherent",
            "init": one_of("he", "default"),
            "rate_factor": SMALL_RATE,
        },
        twin={"scheme": one_of("residual-sqrt", "pre")},
    ),
    Recipe(
        cause="batch-norm-stack",
        count=3,
        sick={"depth": log_uniform_int(20, 120), "norm": "batch", "init": "default", "activation": "relu"},
        twin={"depth": log_uniform_int(2, 10)},
    ),
    Recipe(
        cause="input-scale", count=3, sick={"input_scale": log_uniform(100, 1e4)}, twin={"input_scale": 1.0}
    ),
    Recipe(
        cause="input-scale", count=2, sick={"input_scale": log_uniform(1e-5, 1e-2)}, twin={"input_scale": 1.0}
    ),
    Recipe(cause="frozen-matrices", count=2, sick={"flaw": "frozen-matrices"}, twin=NO_FLAW),
    Recipe(
        cause="none",
        count=3,
        sick={"depth": log_uniform_int(20, 100), "norm": "layer", "rate_factor": SMALL_RATE},
    ),
)

CONV_BASE: Fields = {
    "data": "digits",
    "depth": log_uniform_int(2, 8),
    "width": one_of(8, 12),
    "activation": one_of("relu", "gelu", "tanh"),
    "init": "critical",
    "optimizer": OPTIMIZERS,
    "rate_factor": USUAL_RATE,
    "batch": 32,
    "seed": SEED,
}

CONV = (
    *_RATES,
    _SOFTMAX_TWICE,
    _BFLOAT,
    Recipe(
        cause="default-init",
        count=5,
        sick={"depth": log_uniform_int(5, 40), "activation": RECTIFIERS, "init": "default"},
        twin=CRITICAL,
    ),
    Recipe(
        cause="gain-too-small",
        count=4,
        sick={
            "depth": log_uniform_int(4, 40),
            "activation": "relu",
            "init": "gain",
            "gain": log_uniform(0.1, 1.4),
        },
        twin=CRITICAL,
    ),
    Recipe(
        cause="gain-too-large",
        count=4,
        sick={
            "depth": log_uniform_int(4, 30),
            "activation": RECTIFIERS,
            "init": "gain",
            "gain": log_uniform(3.5, 20),
        },
        twin=CRITICAL,
    ),
    Recipe(
        cause="sigmoid-stack",
        count=4,
        sick={"depth": log_uniform_int(3, 20), "activation": "sigmoid", "init": one_of("default", "xavier")},
        twin={"activation": "relu", "init": "critical"},
    ),
    Recipe(
        cause="constant-init",
        count=2,
        sick={"depth": log_uniform_int(2, 6), "init": "constant", "gain": one_of(0.0, 1.0)},
        twin=CRITICAL,
    ),
    Recipe(
        cause="dead-units",
        count=3,
        sick={"activation": "relu", "flaw": "dead-bias", "flaw_size": log_uniform(0.3, 5)},
        twin=NO_FLAW,
    ),
    Recipe(
        cause="batch-norm-stack",
        count=3,
        sick={"depth": log_uniform_int(20, 50), "norm": "batch", "init": "default", "activation": "relu"},
        twin={"depth": log_uniform_int(2, 10)},
    ),
    Recipe(
        cause="cloned-layers", count=1, sick={"depth": log_uniform_int(6, 30), "flaw": "cloned"}, twin=NO_FLAW
    ),
    Recipe(
        cause="input-scale", count=2, sick={"input_scale": log_uniform(100, 1e4)}, twin={"input_scale": 1.0}
    ),
    Recipe(
        cause="input-scale", count=2, sick={"input_scale": log_uniform(1e-5, 1e-2)}, twin={"input_scale": 1.0}
    ),
)

RESNET_BASE: Fields = {
    "data": "digits",
    "depth": log_uniform_int(2, 12),
    "width": 8,
    "scheme": one_of("pre", "pre", "res-post/v1", "residual-sqrt", "skipinit", "fixup"),
    "optimizer": OPTIMIZERS,
    "rate_factor": USUAL_RATE,
    "batch": 32,
    "seed": SEED,
}
HEALTHY_SCHEMES = one_of("pre", "residual-sqrt", "skipinit", "fixup", "rezero", "residual-linear")

RESNET = (
    *_RATES,
    *_RATES,
    _SOFTMAX_TWICE,
    _BFLOAT,
    _DECAY,
    Recipe(
        cause="unscaled-residual",
        count=6,
        sick={"depth": log_uniform_int(4, 40), "scheme": "unscaled", "init": one_of("default", "he")},
        twin={"scheme": HEALTHY_SCHEMES},
    ),
    Recipe(
        cause="unscaled-residual",
        count=3,
        sick={
            "depth": log_uniform_int(4, 30),
            "scheme": "unscaled",
            "init": "gain",
            "gain": log_uniform(2.5, 8),
        },
        twin={"scheme": HEALTHY_SCHEMES},
    ),
    Recipe(
        cause="plain-stack",
        count=3,
        sick={"depth": log_uniform_int(6, 30), "scheme": "none"},
        twin={"scheme": HEALTHY_SCHEMES},
    ),
    Recipe(
        cause="deepnorm-wrong-way",
        count=2,
        sick={"depth": log_uniform_int(6, 30), "scheme": "deepnorm-wrong-way"},
        twin={"scheme": "deepnorm"},
    ),
    Recipe(
        cause="head-scale",
        count=2,
        sick={"scheme": "pre", "flaw": "head-scale", "flaw_size": log_uniform(10, 300)},
        twin=NO_FLAW,
    ),
    Recipe(
        cause="cloned-layers", count=2, sick={"depth": log_uniform_int(6, 24), "flaw": "cloned"}, twin=NO_FLAW
    ),
    Recipe(
        cause="input-scale",
        count=2,
        sick={"scheme": HEALTHY_SCHEMES, "input_scale": log_uniform(100, 1e4)},
        twin={"input_scale": 1.0},
    ),
    Recipe(cause="frozen-matrices", count=1, sick={"flaw": "frozen-matrices"}, twin=NO_FLAW),
    Recipe(cause="none", count=3, sick={"depth": log_uniform_int(12, 40), "scheme": HEALTHY_SCHEMES}),
)

DEEP_MLP = (
    Recipe(
        cause="default-init",
        count=3,
        sick={"depth": log_uniform_int(120, 200), "init": "default", "rate_factor": 0.3},
        twin={"scheme": "residual-linear"},
    ),
    Recipe(
        cause="unscaled-residual",
        count=3,
        sick={
            "depth": log_uniform_int(120, 200),
            "scheme": "unscaled",
            "init": "default",
            "rate_factor": 0.3,
        },
        twin={"scheme": one_of("residual-sqrt", "rezero")},
    ),
    Recipe(
        cause="none", count=3, sick={"depth": log_uniform_int(120, 200), "scheme": "pre", "rate_factor": 0.3}
    ),
)
