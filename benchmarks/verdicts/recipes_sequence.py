"""Recipes of the families encoder, lm and rnn: what can be wrong with a network that reads a sequence."""

from __future__ import annotations

from benchmarks.verdicts.recipe import Fields, Recipe, log_uniform, log_uniform_int, one_of
from benchmarks.verdicts.recipes import NO_FLAW, OPTIMIZERS, SEED, TOO_LARGE_RATE, TOO_SMALL_RATE, USUAL_RATE

ADAM_VARIANTS = one_of("adam", "adamw")
HEALTHY_SCHEMES = one_of(
    "pre", "residual-linear", "residual-sqrt", "keel", "peri", "deepnorm-adam", "gpt2-init", "rezero"
)
DEEP_HEALTHY_SCHEMES = one_of("residual-linear", "residual-sqrt", "keel", "deepnorm", "deepnorm-adam", "pre")

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

TRANSFORMER_BASE: Fields = {
    "depth": log_uniform_int(2, 8),
    "width": one_of(16, 32),
    "activation": "gelu",
    "scheme": HEALTHY_SCHEMES,
    "optimizer": OPTIMIZERS,
    "rate_factor": USUAL_RATE,
    "seed": SEED,
}
ENCODER_BASE: Fields = {**TRANSFORMER_BASE, "data": "digits", "batch": 32}
LM_BASE: Fields = {**TRANSFORMER_BASE, "data": "text", "batch": 16, "width": 32, "rate_factor": 1.0}

TRANSFORMER = (
    *_RATES,
    Recipe(
        cause="deep-post-norm",
        count=7,
        sick={
            "depth": log_uniform_int(6, 48),
            "scheme": one_of("torch-post", "post"),
            "optimizer": ADAM_VARIANTS,
        },
        twin={"scheme": DEEP_HEALTHY_SCHEMES},
    ),
    Recipe(
        cause="deep-post-norm",
        count=2,
        sick={"depth": log_uniform_int(6, 32), "scheme": "post", "optimizer": one_of("sgd", "momentum")},
        twin={"scheme": one_of("deepnorm", "residual-sqrt", "pre")},
    ),
    Recipe(
        cause="deepnorm-wrong-way",
        count=5,
        sick={"depth": log_uniform_int(4, 32), "scheme": "deepnorm-wrong-way", "optimizer": ADAM_VARIANTS},
        twin={"scheme": one_of("deepnorm", "deepnorm-adam")},
    ),
    Recipe(
        cause="unscaled-residual",
        count=6,
        sick={"depth": log_uniform_int(4, 32), "scheme": "unscaled"},
        twin={"scheme": one_of("pre", "residual-linear", "rezero", "gpt2-init")},
    ),
    Recipe(
        cause="hot-attention",
        count=3,
        sick={"flaw": "hot-attention", "flaw_size": log_uniform(4, 40)},
        twin=NO_FLAW,
    ),
    Recipe(
        cause="embedding-scale",
        count=4,
        sick={"flaw": "embedding-scale", "flaw_size": one_of(1e-4, 1e-3, 30.0, 300.0)},
        twin=NO_FLAW,
    ),
    Recipe(
        cause="head-scale",
        count=2,
        sick={"flaw": "head-scale", "flaw_size": log_uniform(10, 300)},
        twin=NO_FLAW,
    ),
    Recipe(
        cause="cloned-layers",
        count=3,
        sick={"depth": log_uniform_int(6, 32), "scheme": one_of("torch-pre", "torch-pre", "torch-post")},
        twin={"scheme": one_of("pre", "gpt2-init", "layernorm-scaling")},
    ),
    Recipe(cause="softmax-twice", count=2, sick={"flaw": "softmax-twice"}, twin=NO_FLAW),
    Recipe(
        cause="bf16-lost-updates",
        count=2,
        sick={
            "dtype": "bfloat16",
            "optimizer": one_of("sgd", "adam"),
            "rate_factor": log_uniform(0.003, 0.05),
        },
        twin={"rate_factor": 1.0},
    ),
    Recipe(
        cause="decay-too-large",
        count=2,
        sick={"optimizer": one_of("adamw", "sgd"), "weight_decay": log_uniform(3, 30), "rate_factor": 1.0},
        twin={"weight_decay": 1e-4},
    ),
    Recipe(
        cause="none",
        count=3,
        sick={"depth": log_uniform_int(24, 64), "scheme": DEEP_HEALTHY_SCHEMES, "optimizer": ADAM_VARIANTS},
    ),
)

RNN_BASE: Fields = {
    "data": "digits",
    "depth": one_of(1, 1, 2),
    "width": one_of(16, 32),
    "activation": "tanh",
    "scheme": one_of("rnn/8", "unrolled/8", "gru/8", "lstm/8", "unrolled/16"),
    "init": "default",
    "optimizer": OPTIMIZERS,
    "rate_factor": USUAL_RATE,
    "seed": SEED,
}
TEXT: Fields = {"data": "text", "width": 32, "rate_factor": 1.0}
LONG_SEQUENCES = one_of("rnn/32", "unrolled/32", "rnn/64")

RNN = (
    *_RATES,
    Recipe(
        cause="rate-too-large",
        count=3,
        sick={**TEXT, "scheme": one_of("rnn", "gru", "lstm", "unrolled"), "rate_factor": TOO_LARGE_RATE},
        twin={"rate_factor": 1.0},
    ),
    Recipe(
        cause="rate-too-small",
        count=2,
        sick={**TEXT, "scheme": one_of("rnn", "gru", "lstm", "unrolled"), "rate_factor": TOO_SMALL_RATE},
        twin={"rate_factor": 1.0},
    ),
    Recipe(
        cause="recurrent-gain-too-large",
        count=7,
        sick={
            "scheme": one_of("rnn/16", "unrolled/16", "rnn/32", "unrolled/32"),
            "init": "gain",
            "gain": log_uniform(3, 30),
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
            "gain": log_uniform(3, 12),
        },
        twin={"init": "identity", "gain": None},
    ),
    Recipe(
        cause="recurrent-gain-too-small",
        count=6,
        sick={
            "scheme": LONG_SEQUENCES,
            "init": "gain",
            "gain": log_uniform(0.001, 0.3),
            "optimizer": ADAM_VARIANTS,
        },
        twin={"init": "orthogonal", "gain": 1.0},
    ),
    Recipe(
        cause="long-sequence-default-init",
        count=6,
        sick={"scheme": LONG_SEQUENCES, "activation": one_of("relu", "tanh")},
        twin={"scheme": one_of("rnn/8", "gru/8", "unrolled/8")},
    ),
    Recipe(
        cause="recurrent-gain-too-large",
        count=3,
        sick={**TEXT, "scheme": one_of("rnn", "unrolled"), "init": "gain", "gain": log_uniform(10, 100)},
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
            **TEXT,
            "scheme": one_of("rnn", "gru"),
            "flaw": "embedding-scale",
            "flaw_size": one_of(1e-4, 300.0),
        },
        twin=NO_FLAW,
    ),
    Recipe(cause="softmax-twice", count=2, sick={"flaw": "softmax-twice"}, twin=NO_FLAW),
    Recipe(
        cause="input-scale", count=2, sick={"input_scale": log_uniform(100, 1e4)}, twin={"input_scale": 1.0}
    ),
    Recipe(
        cause="input-scale", count=2, sick={"input_scale": log_uniform(1e-5, 1e-2)}, twin={"input_scale": 1.0}
    ),
    Recipe(
        cause="decay-too-large",
        count=2,
        sick={"optimizer": one_of("adamw", "sgd"), "weight_decay": log_uniform(3, 30), "rate_factor": 1.0},
        twin={"weight_decay": 1e-4},
    ),
)

DEEP_TRANSFORMER = (
    Recipe(
        cause="deep-post-norm",
        count=1,
        sick={"depth": log_uniform_int(60, 80), "scheme": "post", "optimizer": ADAM_VARIANTS, "width": 16},
        twin={"scheme": one_of("residual-linear", "deepnorm-adam", "keel")},
    ),
    Recipe(
        cause="none",
        count=2,
        sick={
            "depth": log_uniform_int(60, 80),
            "scheme": one_of("residual-linear", "keel"),
            "optimizer": ADAM_VARIANTS,
            "width": 16,
        },
    ),
)
