"""Learning-rate schedules, and warm-up and clipping as hooks of the optimizer step."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from leadline.errors import InputError
from leadline.nn.clipping import AGC_CLIP, adaptive_clip_, clip_norm_

Shape = Literal["none", "linear", "cosine"]
Schedule = Callable[[int], float]


def schedule(
    shape: Shape, *, warmup_steps: int = 0, total_steps: int | None = None, floor: float = 0.0
) -> Schedule:
    r"""The factor of the peak rate at step $t$ (from 0): up in a straight line for $w$ warm-up steps, then by
    `shape`.

    `none`: 1 from then on. `linear` and `cosine`: down to `floor` at `total_steps`, $f + (1-f)(1-s)$ and $f +
    (1-f)\tfrac12(1+\cos\pi s)$ with $s = (t-w)/(T-w)$. Step 0 has $1/w$, never 0: a step of zero is a batch
    wasted. Warm-up makes the first *steps* small, not the gradients: it hides a scheme whose first updates
    grow with depth (see the table in docs/reference/nn.md) rather than curing it.
    """
    _check(shape, warmup_steps, total_steps)

    def factor(step: int) -> float:
        if step < warmup_steps:
            return (step + 1) / warmup_steps
        if shape == "none" or total_steps is None:
            return 1.0
        share = min(1.0, (step - warmup_steps) / max(1, total_steps - warmup_steps))
        fall = 1 - share if shape == "linear" else (1 + math.cos(math.pi * share)) / 2
        return floor + (1 - floor) * fall

    return factor


def _check(shape: str, warmup_steps: int, total_steps: int | None) -> None:
    if shape not in get_args(Shape):
        raise InputError(
            expected="shape: none, linear or cosine", got=f"shape={shape!r}", fix="choose one of these"
        )
    if shape != "none" and (total_steps is None or total_steps <= warmup_steps):
        raise InputError(
            expected=f"total_steps above warmup_steps={warmup_steps} for a {shape} schedule",
            got=f"total_steps={total_steps}",
            fix="pass the number of steps you will train for",
        )


# Warm-up and clipping as hooks of the optimiser's step: they work with any training loop and any scheduler.
#
# Hooks marked `part_of_step` belong to what a step does; Leadline runs them when it measures one. What they count is in
# the optimiser's own groups, so that it is saved with its state. A copied optimiser has no hooks: PyTorch drops them.

DONE, FULL = "warmed_steps", "full_lr"


@dataclass(frozen=True, slots=True)
class SlowStart:
    """Before a step: the rate of each group times (t + 1) / steps, t the steps made so far."""

    steps: int
    part_of_step: ClassVar[bool] = True

    def __call__(self, optimizer: Optimizer, arguments: Any, named: Any) -> None:
        for group in optimizer.param_groups:
            done = group.setdefault(DONE, 0)
            if done < self.steps:
                group[FULL] = group["lr"]
                group["lr"] = group["lr"] * ((done + 1) / self.steps)


@dataclass(frozen=True, slots=True)
class FullAgain:
    """After a step: the group's own rate, so that schedulers see what they set."""

    steps: int
    part_of_step: ClassVar[bool] = True

    def __call__(self, optimizer: Optimizer, arguments: Any, named: Any) -> None:
        for group in optimizer.param_groups:
            if FULL in group:
                group["lr"] = group.pop(FULL)
                group[DONE] += 1


@dataclass(frozen=True, slots=True)
class Clip:
    r"""Before a step: all gradients times $\min(1, c / \lVert g \rVert)$."""

    limit: float
    part_of_step: ClassVar[bool] = True

    def __call__(self, optimizer: Optimizer, arguments: Any, named: Any) -> None:
        clip_norm_(_parameters(optimizer), self.limit)


@dataclass(frozen=True, slots=True)
class AdaptiveClip:
    """Before a step: the gradient of each unit held below `clip` times the unit's weight (AGC)."""

    clip: float = AGC_CLIP
    part_of_step: ClassVar[bool] = True

    def __call__(self, optimizer: Optimizer, arguments: Any, named: Any) -> None:
        adaptive_clip_(_parameters(optimizer), clip=self.clip)


def warm_up(optimizer: Optimizer, steps: int) -> tuple[RemovableHandle, RemovableHandle]:
    """From now on the first `steps` steps get (t + 1) / steps of the rate; returns the hooks' handles."""
    return (
        optimizer.register_step_pre_hook(SlowStart(steps)),
        optimizer.register_step_post_hook(FullAgain(steps)),
    )


def _parameters(optimizer: Optimizer) -> list[torch.Tensor]:
    found: list[Tensor] = [p for group in optimizer.param_groups for p in group["params"]]
    return found
