"""Warm-up and clipping as hooks of the optimiser's step: they work with any training loop and any scheduler.

Hooks marked `part_of_step` belong to what a step does; Leadline runs them when it measures one. What they count is in
the optimiser's own groups, so that it is saved with its state. A copied optimiser has no hooks: PyTorch drops them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from leadline.nn.clipping import AGC_CLIP, adaptive_clip_, clip_norm_

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
