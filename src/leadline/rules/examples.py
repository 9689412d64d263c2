"""Small made-up profiles: what a rule's sick and healthy examples are built of."""

from __future__ import annotations

from collections.abc import Sequence

from leadline.records import Anomaly, Block, Profile, Stream


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
