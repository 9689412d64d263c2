"""T809: the loss scale of mixed precision falls and falls."""

from __future__ import annotations

import math
from collections.abc import Iterator

from leadline.checks._check import Symptom, check
from leadline.checks._history import History
from leadline.checks._run_examples import course

WINDOW = 256
HALVINGS = (
    8  # ours: GradScaler starts at 2^16 and may need to halve a few times before it fits; 8 leave 1/256
)
SMALLEST = 2.0**-149  # derived: of float32, in which scales are kept; half of it is zero
FLOOR = 1.0  # derived: below it the loss is scaled down, which is what scaling was to prevent


@check(
    code="T809",
    name="loss-scale-collapse",
    since="0.1",
    needs=("loss_scale",),
    sick=course(300, loss_scale=lambda step: 65536.0 * 0.5 ** (step // 20)),
    healthy=course(300, loss_scale=lambda step: 65536.0 * 0.5 ** min(step // 3, 4)),
    explains=("T814",),
    every=8,
    calm=128,
)
def loss_scale_collapse(history: History) -> Iterator[Symptom]:
    r"""Gradients overflow so often that the loss scale collapses.

    ## What it measures
    How often the loss scale was halved in the last `WINDOW` = 256 steps; each halving is a step that was skipped
    because a gradient was not finite. Fires at `HALVINGS` = 8, net of doublings; an error below `FLOOR` = 1.

    ## Why it hurts
    A scale that goes on falling does not cure an overflow: some op makes infinities whatever the scale is, all steps
    are skipped, and the loss curve shows nothing but a flat line. Below 1 small gradients underflow as well.

    ## When it is wrong
    The first steps of a run, while the scale finds its level, take a few halvings: fewer than this asks for.

    ## References
    Micikevicius et al., "Mixed precision training", 2018, section 3.2; PyTorch's `GradScaler` (start 65536, factor
    1/2, doubled after 2000 good steps).
    """
    found = history.scalars("loss_scale", WINDOW)
    if len(found) < 2 or not 0 <= found.values[-1] < math.inf:
        return
    now, highest = found.values[-1], max(found.values)
    halvings = math.log2(highest / max(now, SMALLEST)) if highest > 0 else 0.0
    fell = found.values[0] > now
    if not (halvings >= HALVINGS or (now < FLOOR and fell)):
        return
    since = found.steps[len(found) - 1 - found.values[::-1].index(highest)]
    pace = halvings / max(found.steps[-1] - since, 1)
    yield Symptom(
        severity="error" if now < FLOOR else "warning",
        where="the loss scale",
        since=since,
        message=f"the loss scale fell from {highest:g} to {now:g} in {found.steps[-1] - since} steps: each halving "
        "is a step that was skipped, for a gradient was not finite",
        trend=-pace * math.log(2),
        forecast=f"below 1 in about {math.log2(now) / pace:.0f} steps" if now > 1 and pace > 0 else "",
        evidence={"loss_scale": now, "halvings": halvings},
    )
