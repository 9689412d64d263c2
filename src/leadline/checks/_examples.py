"""Small synthetic profiles and histories: the sick and healthy examples of checks."""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from leadline.checks._history import History, RunLayout
from leadline.records import (
    Anomaly,
    Attribution,
    BlockStep,
    DepthBlock,
    EpsSite,
    Factor,
    FactorKind,
    LinePoint,
    ModelFacts,
    Optimizer,
    ParameterStep,
    ParamGroup,
    Profile,
    ResidualAdd,
    ScaledTensor,
    Stream,
    Symmetry,
    Update,
    Weight,
)
from leadline.records.run import Sample


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


def _block(name: str, forward_ms: float | None, backward_ms: float | None, norms: int) -> DepthBlock:
    return DepthBlock(
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


def stack_with(facts: ModelFacts, *, blocks: int = 8) -> Profile:
    """An even stack with these facts."""
    return replace(geometric(blocks=blocks), facts=facts)


def each_block(profile: Profile, **fields: Any) -> Profile:
    """The profile with these fields in every block."""
    blocks = tuple(replace(block, **fields) for block in profile.blocks)
    return replace(profile, blocks=blocks)


def residual(**fields: Any) -> ResidualAdd:
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
    return ResidualAdd(**{**plain, **fields})


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
        plain, attribution=Attribution(factors=tuple(factors)), facts=ModelFacts(weights=tuple(weights))
    )


def stack_with_update(*, shares: Sequence[float] = (), optimizer: str = "AdamW", **fields: Any) -> Profile:
    """A healthy stack and one optimizer step with these shares by block, changed by `fields`."""
    shares = shares or [1 / 16] * 16
    blocks = tuple(_block_step(index, share) for index, share in enumerate(shares))
    update = replace(_update(optimizer), blocks=blocks, **fields)
    return replace(geometric(blocks=len(shares)), optimizer=_optimizer(optimizer), update=update)


def stack_with_step_size(
    *, optimizer: str = "AdamW", relative: float = 0.02, predicted_decrease: float = 0.5, decay: float = 0.0
) -> Profile:
    """A healthy stack with a loss of 1 and an optimizer step of this size (see `StepSize`)."""
    matrix = weight(0)
    step = parameter_step(
        name=matrix.name, predicted=-predicted_decrease, update_norm=relative, weight_norm=1.0
    )
    update = replace(
        _update(optimizer),
        loss=1.0,
        predicted_loss_change=-predicted_decrease,
        measured_loss_change=-predicted_decrease if predicted_decrease < 1 else 0.1,
        safe_lr=None,
        parameters=(step,),
    )
    return replace(
        stack_with(ModelFacts(weights=(matrix,))),
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


def stack_with_scaled_init(blocks: int, *, branch_scale: float = 1.0) -> Profile:
    """A pre-norm stack in which the last weight of each branch has 1/N of the variance of the others."""
    pairs = [
        each
        for i in range(blocks)
        for each in (weight(i, residual=True), weight(i, residual=True, last=True, variance=1 / blocks))
    ]
    scaled = residual(placement="pre", branch_scale=branch_scale, branch_ms=branch_scale**2 / blocks)
    return each_block(stack_with(ModelFacts(weights=tuple(pairs)), blocks=blocks), residual=scaled)


def scaled_tensor(**fields: Any) -> ScaledTensor:
    """A 64 x 64 matrix as weight decay sees it, changed by `fields`."""
    plain: dict[str, Any] = {
        "name": "layers.0.weight",
        "kind": "matrix",
        "count": 64 * 64,
        "norm": 8.0,
        "grad_norm": 0.01,
    }
    return ScaledTensor(**{**plain, **fields})


def stack_with_decay(
    tensor: ScaledTensor | None = None, *, optimizer: str = "AdamW", eps: Sequence[EpsSite] = ()
) -> Profile:
    """A stack with one tensor that is trained at a learning rate of 0.001 with a weight decay of 0.1."""
    tensor = tensor or scaled_tensor()
    group = ParamGroup(
        parameters=(tensor.name,), lr=1e-3, weight_decay=0.1, options={"betas": [0.9, 0.999], "eps": 1e-8}
    )
    symmetry = Symmetry(
        generators=(), tensors=(tensor,), decayed=True, penalty=1.0, least=0.5, eps=tuple(eps), held=()
    )
    return replace(
        geometric(blocks=4),
        optimizer=Optimizer(name=optimizer, groups=(group,), steps=0),
        symmetry=symmetry,
    )


# Histories of runs.

StepFunction = Callable[[int], float]
# Heuristic: the fewest blocks with a first, a last and a body between them that can grow or decay.
BLOCKS = 6
LAYOUT = RunLayout(
    parameters=tuple(f"layers.{index}.weight" for index in range(BLOCKS)),
    blocks=tuple(f"layers.{index}" for index in range(BLOCKS)),
    parameter_blocks=tuple(range(BLOCKS)),
)
INVARIANT = dataclasses.replace(LAYOUT, invariant=(True,) * BLOCKS)
# SGD with a weight decay of 0.05.
DECAYED = dataclasses.replace(
    INVARIANT, rotation=(math.sqrt(2 * 0.05),) * BLOCKS, settling=(1 / 0.05,) * BLOCKS
)


def scalar_history(steps: int, layout: RunLayout = LAYOUT, **numbers: StepFunction) -> History:
    """A history in which each number is a function of the step."""
    samples = (
        Sample(step=step, scalars={name: value(step) for name, value in numbers.items()})
        for step in range(steps)
    )
    return History(layout).extend(samples)


def vector_history(
    steps: int,
    rows: Mapping[str, Callable[[int], list[float]]],
    *,
    every: int = 1,
    layout: RunLayout = LAYOUT,
    numbers: Mapping[str, StepFunction] | None = None,
) -> History:
    """A history in which vectors are recorded at every `every`-th step."""
    samples = (
        Sample(
            step=step,
            scalars={name: value(step) for name, value in (numbers or {}).items()},
            vectors={name: row(step) for name, row in rows.items()} if step % every == 0 else {},
        )
        for step in range(steps)
    )
    return History(layout).extend(samples)


def noisy(level: StepFunction, noise: float, seed: int = 0) -> StepFunction:
    """A function of the step with multiplicative noise that depends on the step and the seed only."""
    return lambda step: level(step) * math.exp(noise * random.Random(seed * 1_000_003 + step).gauss(0, 1))


def constant(value: float) -> StepFunction:
    return lambda _: value


def falling(start: float, floor: float, steps: float) -> StepFunction:
    """From `start` toward `floor`; the distance shrinks by a factor e every `steps` steps."""
    return lambda step: floor + (start - floor) * math.exp(-step / steps)


def every_block(value: float) -> Callable[[int], list[float]]:
    """The same value for every block."""
    return lambda _: [value] * BLOCKS
