"""What can be wrong with a network that reads a sequence: recipes of the families encoder, lm and rnn."""

from __future__ import annotations

from benchmarks.verdicts.recipe import Fields, Recipe, one_of, real, whole
from benchmarks.verdicts.recipes import HEALTHY, OPTIMIZERS, SEED, TOO_FAST, TOO_SLOW, USUAL_PACE

ADAMS = one_of("adam", "adamw")
SOUND = one_of(
    "pre", "residual-linear", "residual-sqrt", "keel", "peri", "deepnorm-adam", "gpt2-init", "rezero"
)
DEEP_SOUND = one_of("residual-linear", "residual-sqrt", "keel", "deepnorm", "deepnorm-adam", "pre")

_RATES = (
    Recipe(cause="rate-too-large", count=5, sick={"pace": TOO_FAST}, twin={"pace": USUAL_PACE}),
    Recipe(cause="rate-too-small", count=4, sick={"pace": TOO_SLOW}, twin={"pace": USUAL_PACE}),
)

TRANSFORMER_BASE: Fields = {
    "depth": whole(2, 8),
    "width": one_of(16, 32),
    "activation": "gelu",
    "scheme": SOUND,
    "optimizer": OPTIMIZERS,
    "pace": USUAL_PACE,
    "seed": SEED,
}
ENCODER_BASE: Fields = {**TRANSFORMER_BASE, "data": "digits", "batch": 32}
LM_BASE: Fields = {**TRANSFORMER_BASE, "data": "text", "batch": 16, "width": 32, "pace": 1.0}

TRANSFORMER = (
    *_RATES,
    Recipe(
        cause="deep-post-norm",
        count=7,
        sick={"depth": whole(6, 48), "scheme": one_of("torch-post", "post"), "optimizer": ADAMS},
        twin={"scheme": DEEP_SOUND},
    ),
    Recipe(
        cause="deep-post-norm",
        count=2,
        sick={"depth": whole(6, 32), "scheme": "post", "optimizer": one_of("sgd", "momentum")},
        twin={"scheme": one_of("deepnorm", "residual-sqrt", "pre")},
    ),
    Recipe(
        cause="deepnorm-wrong-way",
        count=5,
        sick={"depth": whole(4, 32), "scheme": "deepnorm-wrong-way", "optimizer": ADAMS},
        twin={"scheme": one_of("deepnorm", "deepnorm-adam")},
    ),
    Recipe(
        cause="unscaled-residual",
        count=6,
        sick={"depth": whole(4, 32), "scheme": "unscaled"},
        twin={"scheme": one_of("pre", "residual-linear", "rezero", "gpt2-init")},
    ),
    Recipe(
        cause="hot-attention",
        count=3,
        sick={"flaw": "hot-attention", "flaw_size": real(4, 40)},
        twin=HEALTHY,
    ),
    Recipe(
        cause="embedding-scale",
        count=4,
        sick={"flaw": "embedding-scale", "flaw_size": one_of(1e-4, 1e-3, 30.0, 300.0)},
        twin=HEALTHY,
    ),
    Recipe(
        cause="head-scale",
        count=2,
        sick={"flaw": "head-scale", "flaw_size": real(10, 300)},
        twin=HEALTHY,
    ),
    Recipe(
        cause="cloned-layers",
        count=3,
        sick={"depth": whole(6, 32), "scheme": one_of("torch-pre", "torch-pre", "torch-post")},
        twin={"scheme": one_of("pre", "gpt2-init", "layernorm-scaling")},
    ),
    Recipe(cause="softmax-twice", count=2, sick={"flaw": "softmax-twice"}, twin=HEALTHY),
    Recipe(
        cause="bf16-lost-updates",
        count=2,
        sick={"dtype": "bfloat16", "optimizer": one_of("sgd", "adam"), "pace": real(0.003, 0.05)},
        twin={"pace": 1.0},
    ),
    Recipe(
        cause="decay-too-large",
        count=2,
        sick={"optimizer": one_of("adamw", "sgd"), "weight_decay": real(3, 30), "pace": 1.0},
        twin={"weight_decay": 1e-4},
    ),
    Recipe(cause="none", count=3, sick={"depth": whole(24, 64), "scheme": DEEP_SOUND, "optimizer": ADAMS}),
)

RNN_BASE: Fields = {
    "data": "digits",
    "depth": one_of(1, 1, 2),
    "width": one_of(16, 32),
    "activation": "tanh",
    "scheme": one_of("rnn/8", "unrolled/8", "gru/8", "lstm/8", "unrolled/16"),
    "init": "default",
    "optimizer": OPTIMIZERS,
    "pace": USUAL_PACE,
    "seed": SEED,
}
CHARACTERS: Fields = {"data": "text", "width": 32, "pace": 1.0}
LONG = one_of("rnn/32", "unrolled/32", "rnn/64")

RNN = (
    *_RATES,
    Recipe(
        cause="rate-too-large",
        count=3,
        sick={**CHARACTERS, "scheme": one_of("rnn", "gru", "lstm", "unrolled"), "pace": TOO_FAST},
        twin={"pace": 1.0},
    ),
    Recipe(
        cause="rate-too-small",
        count=2,
        sick={**CHARACTERS, "scheme": one_of("rnn", "gru", "lstm", "unrolled"), "pace": TOO_SLOW},
        twin={"pace": 1.0},
    ),
    Recipe(
        cause="recurrent-gain-too-large",
        count=7,
        sick={
            "scheme": one_of("rnn/16", "unrolled/16", "rnn/32", "unrolled/32"),
            "init": "gain",
            "gain": real(3, 30),
        },
        twin={"init": "orthogonal", "gain": 1.0},
    ),
    Recipe(
        cause="recurrent-gain-too-large",
        count=4,
        sick={
            "scheme": one_of("rnn/16", "unrolled/16"),
            "activation": "relu",
            "init": "gain",
            "gain": real(3, 12),
        },
        twin={"init": "identity", "gain": None},
    ),
    Recipe(
        cause="recurrent-gain-too-small",
        count=6,
        sick={"scheme": LONG, "init": "gain", "gain": real(0.001, 0.3), "optimizer": ADAMS},
        twin={"init": "orthogonal", "gain": 1.0},
    ),
    Recipe(
        cause="long-sequence-default-init",
        count=6,
        sick={"scheme": LONG, "activation": one_of("relu", "tanh")},
        twin={"scheme": one_of("rnn/8", "gru/8", "unrolled/8")},
    ),
    Recipe(
        cause="recurrent-gain-too-large",
        count=3,
        sick={**CHARACTERS, "scheme": one_of("rnn", "unrolled"), "init": "gain", "gain": real(10, 100)},
        twin={"init": "orthogonal", "gain": 1.0},
    ),
    Recipe(
        cause="constant-init",
        count=2,
        sick={"scheme": one_of("rnn/8", "unrolled/8"), "init": "constant", "gain": one_of(1.0, 4.0)},
        twin={"init": "default", "gain": None},
    ),
    Recipe(
        cause="embedding-scale",
        count=2,
        sick={
            **CHARACTERS,
            "scheme": one_of("rnn", "gru"),
            "flaw": "embedding-scale",
            "flaw_size": one_of(1e-4, 300.0),
        },
        twin=HEALTHY,
    ),
    Recipe(cause="softmax-twice", count=2, sick={"flaw": "softmax-twice"}, twin=HEALTHY),
    Recipe(cause="input-scale", count=2, sick={"input_scale": real(100, 1e4)}, twin={"input_scale": 1.0}),
    Recipe(cause="input-scale", count=2, sick={"input_scale": real(1e-5, 1e-2)}, twin={"input_scale": 1.0}),
    Recipe(
        cause="decay-too-large",
        count=2,
        sick={"optimizer": one_of("adamw", "sgd"), "weight_decay": real(3, 30), "pace": 1.0},
        twin={"weight_decay": 1e-4},
    ),
)

DEEP_TRANSFORMER = (
    Recipe(
        cause="deep-post-norm",
        count=1,
        sick={"depth": whole(60, 80), "scheme": "post", "optimizer": ADAMS, "width": 16},
        twin={"scheme": one_of("residual-linear", "deepnorm-adam", "keel")},
    ),
    Recipe(
        cause="none",
        count=2,
        sick={
            "depth": whole(60, 80),
            "scheme": one_of("residual-linear", "keel"),
            "optimizer": ADAMS,
            "width": 16,
        },
    ),
)
