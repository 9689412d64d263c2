"""Small made-up steps: what the sick and healthy examples of the update's rules are built of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from leadline.records import BlockStep, LinePoint, Optimizer, ParameterStep, ParamGroup, Profile, Update
from leadline.rules.examples import geometric


def stepped(*, shares: Sequence[float] = (), optimizer: str = "AdamW", **fields: Any) -> Profile:
    """A healthy stack whose optimiser's step has these parts by block, and otherwise what `fields` say."""
    shares = shares or [1 / 16] * 16
    profile = geometric(blocks=len(shares))
    group = ParamGroup(parameters=(), lr=1e-3, weight_decay=0.0, options={})
    update = replace(_step(optimizer, shares), **fields)
    return replace(profile, optimizer=Optimizer(name=optimizer, groups=(group,), steps=0), update=update)


def _step(optimizer: str, shares: Sequence[float]) -> Update:
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
        parameters=(parameter(),),
        blocks=tuple(_block(index, share) for index, share in enumerate(shares)),
        ranges=(),
    )


def parameter(**fields: Any) -> ParameterStep:
    made = ParameterStep(
        name="layers.0.weight",
        block="layers.0",
        count=100,
        dtype="float32",
        predicted=-0.1,
        grad_norm=1.0,
        update_norm=1.0,
        weight_norm=10.0,
    )
    return replace(made, **fields)


def _block(index: int, share: float) -> BlockStep:
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
