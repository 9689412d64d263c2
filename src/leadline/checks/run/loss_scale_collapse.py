"""T809: the loss scale of mixed precision keeps falling."""

from __future__ import annotations

import math
from collections.abc import Iterator

from leadline.checks._check import Symptom, check
from leadline.checks._examples import scalar_history
from leadline.checks._history import History

# Heuristic: a quarter of the history.
WINDOW = 256
# Heuristic: GradScaler starts at 2^16 and may halve a few times before it fits; 8 halvings leave 1/256.
MIN_HALVINGS = 8
# Derived: the smallest positive float32, the type in which scales are kept; half of it is zero.
MIN_LOSS_SCALE = 2.0**-149
# Derived: below 1 the loss is scaled down, which is what scaling was meant to prevent.
MIN_USEFUL_SCALE = 1.0

OVERFLOW_ACTION = "Run the op that overflows in float32, or train in bfloat16, which needs no loss scale."


@check(
    code="T809",
    name="loss-scale-collapse",
    since="0.1.0",
    needs=("loss_scale",),
    sick=scalar_history(300, loss_scale=lambda step: 65536.0 * 0.5 ** (step // 20)),
    healthy=scalar_history(300, loss_scale=lambda step: 65536.0 * 0.5 ** min(step // 3, 4)),
    explains=("T814",),
    every=8,
    calm=128,
)
def loss_scale_collapse(history: History) -> Iterator[Symptom]:
    r"""Gradients overflow so often that the loss scale collapses.

    ## What it measures
    How often the loss scale was halved in the last `WINDOW` = 256 steps. Each halving is a step that was skipped
    because a gradient was not finite. Fires at `MIN_HALVINGS` = 8, net of doublings; an error below
    `MIN_USEFUL_SCALE` = 1.

    ## Why it hurts
    A scale that keeps falling does not cure an overflow: some op produces infinities at any scale, all steps are
    skipped, and the loss curve is a flat line. Below 1 small gradients underflow as well.

    ## When it is wrong
    The first steps of a run, while the scale finds its level, take a few halvings, but fewer than `MIN_HALVINGS`.

    ## References
    Micikevicius et al., "Mixed precision training", 2018, section 3.2; PyTorch's `GradScaler` (start 65536, factor
    1/2, doubled after 2000 good steps).
    """
    scales = history.scalars("loss_scale", WINDOW)
    if len(scales) < 2 or not 0 <= scales.values[-1] < math.inf:
        return
    now, highest = scales.values[-1], max(scales.values)
    halvings = math.log2(highest / max(now, MIN_LOSS_SCALE)) if highest > 0 else 0.0
    fell = scales.values[0] > now
    if not (halvings >= MIN_HALVINGS or (now < MIN_USEFUL_SCALE and fell)):
        return
    since = scales.steps[len(scales) - 1 - scales.values[::-1].index(highest)]
    rate = halvings / max(scales.steps[-1] - since, 1)
    yield Symptom(
        severity="error" if now < MIN_USEFUL_SCALE else "warning",
        where="the loss scale",
        since=since,
        message=f"the loss scale fell from {highest:g} to {now:g} in {scales.steps[-1] - since} steps: each halving "
        "is a step skipped because a gradient was not finite",
        action=OVERFLOW_ACTION,
        trend=-rate * math.log(2),
        forecast=f"below 1 in about {math.log2(now) / rate:.0f} steps" if now > 1 and rate > 0 else "",
        evidence={"loss_scale": now, "halvings": halvings},
    )
