"""Small made-up profiles: what a rule's sick and healthy examples are built of."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import msgspec

from leadline.records import (
    Anomaly,
    Attribution,
    Block,
    Factor,
    FactorKind,
    Facts,
    Profile,
    Residual,
    Stream,
    Weight,
)


def geometric(*, blocks: int, forward_gain: float = 1.0, grad_gain: float = 1.0, norms: int = 0) -> Profile:
    """A stack whose second moments change by a constant factor a block, each in its own direction."""
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
    """A single stream with these second moments at the exits of its blocks, `norms` in each, and a head behind them."""
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
    """An even stack about which these facts are known."""
    return msgspec.structs.replace(geometric(blocks=blocks), facts=facts)


def each_block(profile: Profile, **fields: Any) -> Profile:
    """The profile with these fields in every block."""
    blocks = tuple(msgspec.structs.replace(block, **fields) for block in profile.blocks)
    return msgspec.structs.replace(profile, blocks=blocks)


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


def likeness_of(correlations: Sequence[float]) -> Profile:
    """An even stack in whose blocks samples are that much alike."""
    plain = geometric(blocks=len(correlations))
    pairs = zip(plain.blocks, [*correlations, correlations[-1]], strict=True)
    blocks = tuple(msgspec.structs.replace(block, likeness=rho) for block, rho in pairs)
    return msgspec.structs.replace(plain, blocks=blocks)


def plain_layers(*, blocks: int, weight: float, slope: float, variance: float | None = None) -> Profile:
    """A plain ReLU stack whose weights and slopes multiply the squared gradient by these factors a layer."""
    plain = geometric(blocks=blocks, grad_gain=weight * slope)
    parts: tuple[tuple[FactorKind, str, float], ...] = (
        ("weight", "linear", weight),
        ("activation", "relu", slope),
    )
    factors = [
        Factor(block=index, kind=kind, op=op, backward=math.log(gain), forward=0.0)
        for index in range(blocks)
        for kind, op, gain in parts
    ]
    weights = tuple(
        Weight(
            block=index,
            name=f"layers.{index}.weight",
            fan_in=64,
            fan_out=64,
            variance=weight if variance is None else variance,
            activation="relu",
            grad_ms=1e-4,
        )
        for index in range(blocks)
    )
    return msgspec.structs.replace(
        plain, attribution=Attribution(factors=tuple(factors)), facts=Facts(weights=weights)
    )
