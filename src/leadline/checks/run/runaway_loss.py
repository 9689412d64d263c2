"""T840: the loss falls without end."""

from __future__ import annotations

import math
from collections.abc import Iterator
from statistics import median

from leadline.checks._check import Symptom, check
from leadline.checks._examples import falling, noisy, scalar_history
from leadline.checks._history import History
from leadline.checks._loop import incomparable_clause, is_comparable
from leadline.checks._statistics import finite

# Heuristic: the losses that must all be far below zero; a single one is an accident of its batch.
RECENT_STEPS = 4
# Heuristic: over the largest of the first losses. A log-likelihood falls to a few times its first value, below zero.
MIN_FALL = 1e3


@check(
    code="T840",
    name="runaway-loss",
    since="0.2.0",
    needs=("loss",),
    sick=scalar_history(64, loss=lambda step: 10.0 - math.exp(step / 4)),
    healthy=scalar_history(400, loss=noisy(falling(90.0, -400.0, 60), 0.3)),
    every=8,
    confirm=2,
    calm=64,
)
def runaway_loss(history: History) -> Iterator[Symptom]:
    r"""The loss is negative, and a thousand times as large as at the start.

    ## What it measures
    The last `RECENT_STEPS` = 4 losses against the largest absolute value among the first ones. Fires if all of them are
    below zero by `MIN_FALL` = 1000 times as much.

    ## Why it hurts
    A loss that measures an error or a likelihood has a smallest value. One that falls to ever lower negative numbers
    has none: a term has the wrong sign, or an output that should be bounded is not. The network stops learning the
    data and makes that term larger, until it overflows.

    ## When it is wrong
    A score that is maximized may grow that far, such as the value that an actor gets from its critic. It is a note
    where the loop shows that losses cannot be compared: another optimizer trains against this one, or a network that
    learns makes the targets or the data of each step.

    ## References
    Kingma and Welling, "Auto-encoding variational Bayes", 2014, appendix B (the sign of the divergence).
    """
    losses, first = history.scalars("loss"), history.start("loss")
    recent = finite(losses.values[-RECENT_STEPS:])
    if len(recent) < RECENT_STEPS or not first:
        return
    start = max(map(abs, first))
    if start == 0 or max(recent) > -MIN_FALL * start:
        return
    yield Symptom(
        severity="error" if is_comparable(history) else "info",
        where="the loss",
        since=losses.steps[-RECENT_STEPS],
        message=f"the loss falls without end: {recent[-1]:.3g} after {median(first):.3g} at the start"
        + incomparable_clause(history),
        action="Check the sign of each term of the loss; penalties, divergences and squared distances are added.",
        evidence={"loss": recent[-1], "start": start},
    )
