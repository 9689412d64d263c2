"""Small made-up profiles: the sick and healthy examples of model checks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from leadline.records import (
    Anomaly,
    Attribution,
    Block,
    BlockStep,
    Factor,
    FactorKind,
    Facts,
    LinePoint,
    Optimizer,
    ParameterStep,
    ParamGroup,
    Profile,
    Residual,
    Stream,
    Update,
    Weight,
)


def geometric(*, blocks: int, forward_gain: float = 1.0, grad_gain: float = 1.0, norms: int = 0) -> Profile:
    """A stack whose second moments change by constant factors per block, forward and backward."""
    forward = [forward_gain**depth for depth in range(blocks)]
    backward = [grad_gain ** (blocks - 1 - depth) for depth in range(blocks)]
    return profile_of(forward, backward, norms=norms)


def power_law(*, blocks: int, exponent: float = 1.0) -> Profile:
    """A pre-norm stack: the signal grows as a power of depth, the gradient falls by the same power."""
    forward = [float(1 + depth) ** exponent for depth in range(blocks)]
    return profile_of(forward, [forward[-1] / each for each in forward])


def profile_of(
    forward: Sequence[float | None],
    backward: Sequence[float | None],
    anomalies: Sequence[Anomaly] = (),
    *,
    norms: int = 0,
) -> Profile:
    """One stream with these second moments at the exits of its blocks, `norms` norms in each block, and a head."""
    pairs = [*zip(forward, backward, strict=True), (1.0, 1.0)]
    return Profile(
        model="Example",
        loss=1.0,
        training=True,
        optimizer=None,
        parameters=0,
        trainable=0,
        streams=(Stream(input="input", blocks=len(pairs)),),
        blocks=tuple(_block(f"layers.{depth}", *pair, norms) for depth, pair in enumerate(pairs)),
        jumps=(),
        anomalies=tuple(anomalies),
        backward_ran=True,
    )


def _block(name: str, forward_ms: float | None, backward_ms: float | None, norms: int) -> Block:
    return Block(
        name=name,
        stream=0,
        forward_ms=forward_ms,
        backward_ms=backward_ms,
        elements=1,
        exit=0,
        weights=1,
        norms=norms,
        bypassed=False,
        residual=None,
        params=(),
        modules=(),
    )


def stack_with(facts: Facts, *, blocks: int = 8) -> Profile:
    """An even stack with these facts."""
    return replace(geometric(blocks=blocks), facts=facts)


def each_block(profile: Profile, **fields: Any) -> Profile:
    """The profile with these fields in every block."""
    blocks = tuple(replace(block, **fields) for block in profile.blocks)
    return replace(profile, blocks=blocks)


def residual(**fields: Any) -> Residual:
    """A residual add whose skip and branch have second moment 1, changed by `fields`."""
    plain: dict[str, Any] = {
        "placement": "none",
        "projected": False,
        "skip_ms": 1.0,
        "branch_ms": 1.0,
        "add": 0,
        "skip_scale": 1.0,
        "branch_scale": 1.0,
        "branch_mean_share": 0.0,
    }
    return Residual(**{**plain, **fields})


def weight(block: int = 0, **fields: Any) -> Weight:
    """A critical 64 x 64 weight layer, changed by `fields`."""
    plain: dict[str, Any] = {
        "block": block,
        "name": f"layers.{block}.weight",
        "fan_in": 64,
        "fan_out": 64,
        "variance": 1.0,
        "grad_ms": 1e-4,
    }
    return Weight(**{**plain, **fields})


def stack_with_likeness(correlations: Sequence[float]) -> Profile:
    """An even stack in which samples have these correlations at the exits of the blocks."""
    plain = geometric(blocks=len(correlations))
    pairs = zip(plain.blocks, [*correlations, correlations[-1]], strict=True)
    blocks = tuple(replace(block, likeness=rho) for block, rho in pairs)
    return replace(plain, blocks=blocks)


def plain_layers(*, blocks: int, gain: float, slope: float, variance: float | None = None) -> Profile:
    """A plain ReLU stack whose weights and slopes multiply the squared gradient by these factors per layer."""
    plain = geometric(blocks=blocks, grad_gain=gain * slope)
    parts: tuple[tuple[FactorKind, str, float], ...] = (
        ("weight", "linear", gain),
        ("activation", "relu", slope),
    )
    factors = [
        Factor(block=index, kind=kind, op=op, backward=math.log(factor), forward=0.0)
        for index in range(blocks)
        for kind, op, factor in parts
    ]
    variance = gain if variance is None else variance
    weights = [weight(index, variance=variance, activation="relu") for index in range(blocks)]
    return replace(
        plain, attribution=Attribution(factors=tuple(factors)), facts=Facts(weights=tuple(weights))
    )


def stack_with_update(*, shares: Sequence[float] = (), optimizer: str = "AdamW", **fields: Any) -> Profile:
    """A healthy stack and one optimizer step with these shares by block, changed by `fields`."""
    shares = shares or [1 / 16] * 16
    blocks = tuple(_block_step(index, share) for index, share in enumerate(shares))
    update = replace(_update(optimizer), blocks=blocks, **fields)
    return replace(geometric(blocks=len(shares)), optimizer=_optimizer(optimizer), update=update)


def stack_with_step_size(
    *, optimizer: str = "AdamW", relative: float = 0.02, promised: float = 0.5, decay: float = 0.0
) -> Profile:
    """A healthy stack with a loss of 1 and an optimizer step of this size (see `StepSize`)."""
    matrix = weight(0)
    step = parameter_step(name=matrix.name, predicted=-promised, update_norm=relative, weight_norm=1.0)
    update = replace(
        _update(optimizer),
        loss=1.0,
        predicted_loss_change=-promised,
        measured_loss_change=-promised if promised < 1 else 0.1,
        safe_lr=None,
        parameters=(step,),
    )
    return replace(
        stack_with(Facts(weights=(matrix,))),
        optimizer=_optimizer(optimizer, parameters=(matrix.name,), decay=decay),
        update=update,
    )


def parameter_step(**fields: Any) -> ParameterStep:
    """The step of one 64 x 64 matrix, changed by `fields`."""
    plain: dict[str, Any] = {
        "name": "layers.0.weight",
        "block": "layers.0",
        "count": 64 * 64,
        "dtype": "float32",
        "predicted": -0.1,
        "grad_norm": 1.0,
        "update_norm": 1.0,
        "weight_norm": 10.0,
    }
    return ParameterStep(**{**plain, **fields})


def _optimizer(name: str, *, parameters: tuple[str, ...] = (), decay: float = 0.0) -> Optimizer:
    """A fresh optimizer with a learning rate of 0.001 whose weight decay removes this share per step."""
    group = ParamGroup(parameters=parameters, lr=1e-3, weight_decay=decay / 1e-3, options={})
    return Optimizer(name=name, groups=(group,), steps=0)


def _update(optimizer: str) -> Update:
    return Update(
        optimizer=optimizer,
        steps=0,
        lr=1e-3,
        loss=2.3,
        predicted_loss_change=-0.1,
        measured_loss_change=-0.09,
        ratio=0.9,
        loss_resolution=1e-6,
        function_change=0.1,
        function_change_relative=0.1,
        function_response=0.1,
        blocks_response=0.1,
        grad_square=1.0,
        update_norm=1.0,
        weight_norm=10.0,
        line=(LinePoint(multiple=1.0, loss=2.21, ratio=0.9),),
        parting=5.0,
        parting_is_bound=False,
        sharpness=None,
        sharpness_kind=None,
        stability_lr=None,
        safe_lr=5e-3,
        warmup_steps=0,
        confidence="medium",
        confidence_why="made up",
        parameters=(parameter_step(),),
        blocks=(),
        ranges=(),
    )


def _block_step(index: int, share: float) -> BlockStep:
    return BlockStep(
        name=f"layers.{index}",
        stream=0,
        repeated=True,
        predicted=-0.1 * share,
        share=share,
        grad_square=share,
        update_norm=0.1,
        weight_norm=1.0,
    )
