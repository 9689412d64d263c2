"""Reports made by hand, so that the page can be tested without a model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from leadline.records import Block, Coverage, Finding, Gap, Jump, Optimizer, Profile, Residual, Stream
from leadline.report import Report

Moments = Sequence[float | None]


def block(name: str, forward: float | None, backward: float | None, **changes: Any) -> Block:
    plain: dict[str, Any] = {
        "name": name,
        "stream": 0,
        "forward_ms": forward,
        "backward_ms": backward,
        "elements": 64,
        "exit": 0,
        "weights": 1,
        "norms": 0,
        "bypassed": False,
        "residual": None,
        "params": (),
        "modules": (),
    }
    return Block(**{**plain, **changes})


def residual(placement: str = "pre") -> Residual:
    return Residual(placement=placement, projected=False, skip_ms=1.0, branch_ms=0.5, add=0)


def profile(forward: Moments, backward: Moments, **changes: Any) -> Profile:
    blocks = tuple(block(f"layers.{i}", f, b) for i, (f, b) in enumerate(zip(forward, backward, strict=True)))
    plain: dict[str, Any] = {
        "model": "Sequential",
        "loss": 0.6931,
        "training": True,
        "optimizer": Optimizer(name="Adam", groups=(), steps=0),
        "parameters": 241_794,
        "trainable": 241_794,
        "streams": (Stream(input="x", blocks=len(blocks)),),
        "blocks": blocks,
        "jumps": (),
        "anomalies": (),
        "backward_ran": True,
    }
    return Profile(**{**plain, **changes})


def finding(code: str = "B201", **changes: Any) -> Finding:
    plain: dict[str, Any] = {
        "code": code,
        "name": "gradient-decay",
        "severity": "error",
        "where": "layers.58 … layers.0",
        "message": "the gradient keeps 0.154 of its power a block: 8.03e-48 of what leaves layers.58 reaches layers.0, "
        "58 blocks earlier",
        "evidence": {"gain_per_block": 0.154},
    }
    return Finding(**{**plain, **changes})


def coverage(*gaps: Gap) -> Coverage:
    return Coverage(ops=121, ops_known=121, values=120, forward=120, backward=119, gaps=gaps)


def report(
    shape: Profile, *findings: Finding, verdict: str = "fails", seen: Coverage | None = None
) -> Report:
    return Report(
        leadline="0.1.0", verdict=verdict, findings=findings, profile=shape, coverage=seen or coverage()
    )


def sick() -> Report:
    """Sixty blocks through which the gradient dies."""
    shape = profile(
        [0.3 * 0.95**i for i in range(60)],
        [2e-4 * 0.154 ** (59 - i) for i in range(60)],
        jumps=(Jump(direction="backward", block="layers.59", factor=0.0123),),
    )
    return report(shape, finding())


def healthy() -> Report:
    """Twenty-four pre-norm blocks in good order."""
    shape = profile([1 + i / 10 for i in range(24)], [1e-5] * 24)
    blocks = tuple(
        block(each.name, each.forward_ms, each.backward_ms, residual=residual()) for each in shape.blocks
    )
    return report(profile([], [], blocks=blocks, streams=shape.streams), verdict="trains")


def broken() -> Report:
    """Every kind of value that has no logarithm, two streams, many findings and gaps."""
    kinds = [1.0, None, float("nan"), float("inf"), 0.0, 2.0]
    encoder = tuple(block(f"encoder.{i}", value, value) for i, value in enumerate(kinds))
    decoder = tuple(block(f"decoder.{i}", 1.0, 1.0, stream=1, residual=residual("post")) for i in range(6))
    streams = (Stream(input="source", blocks=6, joins=1), Stream(input="target", blocks=6))
    gaps = [Gap(what=f"unknown op {i}", why="no rule in the op table", where=tuple("abc")) for i in range(6)]
    findings = [finding(code=f"F10{i}", severity=("info", "warning", "error")[i % 3]) for i in range(9)]
    shape = profile([], [], blocks=encoder + decoder, streams=streams, loss=float("nan"), optimizer=None)
    return report(shape, *findings, seen=coverage(*gaps))
