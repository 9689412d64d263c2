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
    r"""A function of the step $t$ (from 0) that gives the factor of the peak rate: linear warm-up, then `shape`.

    The factor rises in a straight line for $w$ = `warmup_steps` steps. After that it is 1 for `none`; for `linear` it
    is $f + (1-f)(1-s)$ and for `cosine` $f + (1-f)\tfrac12(1+\cos\pi s)$, where $f$ is `floor`, $s = (t-w)/(T-w)$ and
    $T$ is `total_steps`. Step 0 has the factor $1/w$ and not 0, because a step of zero wastes a batch. Warm-up makes
    the first *steps* small, not the gradients: it hides a scheme whose first updates grow with depth (see the table in
    docs/reference/nn.md) but does not fix it.
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
            expected="shape: none, linear or cosine", got=f"shape={shape!r}", fix="pass one of these names"
        )
    if shape != "none" and (total_steps is None or total_steps <= warmup_steps):
        raise InputError(
            expected=f"total_steps above warmup_steps={warmup_steps} for a {shape} schedule",
            got=f"total_steps={total_steps}",
            fix="pass total_steps, the number of training steps",
        )


# Warm-up and clipping as hooks of the optimizer step: they work with any training loop and any scheduler.
#
# Hooks marked `part_of_step` decide what a step is; Leadline runs them when it measures one. Their counters are in the
# optimizer's groups, so that they are saved with its state. A copied optimizer has no hooks: PyTorch drops them.

# Keys in the optimizer's groups.
WARMED_STEPS, FULL_LR = "warmed_steps", "full_lr"


@dataclass(frozen=True, slots=True)
class SlowStart:
    """Step pre-hook: multiplies the rate of each group by (t + 1) / steps, where t counts the steps made so far."""

    steps: int
    part_of_step: ClassVar[bool] = True

    def __call__(self, optimizer: Optimizer, arguments: Any, named: Any) -> None:
        for group in optimizer.param_groups:
            done = group.setdefault(WARMED_STEPS, 0)
            if done < self.steps:
                group[FULL_LR] = group["lr"]
                group["lr"] = group["lr"] * ((done + 1) / self.steps)


@dataclass(frozen=True, slots=True)
class FullAgain:
    """Step post-hook: restores the rate of each group, so that schedulers see what they set."""

    steps: int
    part_of_step: ClassVar[bool] = True

    def __call__(self, optimizer: Optimizer, arguments: Any, named: Any) -> None:
        for group in optimizer.param_groups:
            if FULL_LR in group:
                group["lr"] = group.pop(FULL_LR)
                group[WARMED_STEPS] += 1


@dataclass(frozen=True, slots=True)
class Clip:
    r"""Step pre-hook: multiplies all gradients by $\min(1, c / \lVert g \rVert)$, where $c$ is `limit`."""

    limit: float
    part_of_step: ClassVar[bool] = True

    def __call__(self, optimizer: Optimizer, arguments: Any, named: Any) -> None:
        clip_norm_(_parameters(optimizer), self.limit)


@dataclass(frozen=True, slots=True)
class AdaptiveClip:
    """Step pre-hook: limits the gradient of each unit to `clip` times the norm of its weight (AGC)."""

    clip: float = AGC_CLIP
    part_of_step: ClassVar[bool] = True

    def __call__(self, optimizer: Optimizer, arguments: Any, named: Any) -> None:
        adaptive_clip_(_parameters(optimizer), clip=self.clip)


def warm_up(optimizer: Optimizer, steps: int) -> tuple[RemovableHandle, RemovableHandle]:
    """Warm up the next `steps` steps, with (t + 1) / steps of the rate at step t; returns the handles of the hooks."""
    return (
        optimizer.register_step_pre_hook(SlowStart(steps)),
        optimizer.register_step_post_hook(FullAgain(steps)),
    )


def _parameters(optimizer: Optimizer) -> list[torch.Tensor]:
    parameters: list[Tensor] = [p for group in optimizer.param_groups for p in group["params"]]
    return parameters
