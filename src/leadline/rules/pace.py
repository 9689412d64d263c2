"""The first steps of the given optimiser, as rules ask about them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import msgspec

from leadline.records import Facts, Optimizer, Pace, Profile
from leadline.rules.examples import stack_with
from leadline.rules.families import Family, family_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """How far one step moves the weights, and what it promises to take off the loss."""

    family: Family
    optimizer: str
    lr: float
    relative: float
    """Median over matrices of the step's size over the weight's."""
    promised: float
    """The change of the loss, if that were linear, over the loss."""
    decay: float


def step_of(profile: Profile) -> Step | None:
    """None where nothing is known: no optimiser, one of unknown kind, or a loss that is no positive number."""
    pace = profile.facts.pace if profile.facts else None
    family = optimizer_family(profile)
    if (
        pace is None
        or family is None
        or profile.optimizer is None
        or not profile.loss
        or not profile.loss > 0
    ):
        return None
    free = family == "adam"
    change = pace.scale_free_loss_change if free else pace.linear_loss_change
    step = Step(
        family=family,
        optimizer=profile.optimizer.name,
        lr=pace.lr,
        relative=pace.scale_free_relative if free else pace.linear_relative,
        promised=change / profile.loss,
        decay=pace.decay,
    )
    return step if math.isfinite(step.relative) and math.isfinite(step.promised) else None


def optimizer_family(profile: Profile) -> Family | None:
    """Whether steps are linear in the gradient or free of its scale; None: not known."""
    return None if profile.optimizer is None else family_of(profile.optimizer.name)


def paced(
    *, name: str = "AdamW", relative: float = 0.02, promised: float = 0.5, decay: float = 0.0
) -> Profile:
    """An example: an even stack with a loss of 1 and an optimiser that takes such steps."""
    pace = Pace(
        lr=1e-3,
        matrices=8,
        scale_free_relative=relative,
        linear_relative=relative,
        scale_free_loss_change=promised,
        linear_loss_change=promised,
        decay=decay,
    )
    optimizer = Optimizer(name=name, groups=(), steps=0)
    return msgspec.structs.replace(stack_with(Facts(pace=pace)), optimizer=optimizer)
