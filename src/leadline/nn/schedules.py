"""Learning-rate schedules as functions of the step, for `torch.optim.lr_scheduler.LambdaLR`."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal, get_args

from leadline.errors import InputError

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
    grow with depth (see the table in docs/nn.md) rather than curing it.
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
