"""T820: the learning rate is zero or nearly zero while steps go on."""

from __future__ import annotations

from collections.abc import Iterator

from leadline.checks._check import Symptom, check
from leadline.checks._examples import constant, scalar_history
from leadline.checks._history import History
from leadline.checks._loop import since, value

# Heuristic: steps in a row; a warm-up from zero or the end of a schedule has fewer.
MIN_ZERO_STEPS = 16
# Heuristic: steps in a row below 1/1000 of the peak ...
MIN_LOW_STEPS = 16
# Heuristic: ... which are this share of the run. Derived: a cosine is so low in its last 2 %, a cubic in its last 10 %.
MIN_LOW_SHARE = 0.2
# Heuristic: calls of a schedule after its end; fewer are a last partial epoch.
MIN_OVERRUN = 8


@check(
    code="T820",
    name="spent-schedule",
    since="0.1.0",
    needs=("zero_rate", "low_rate", "schedule_overrun"),
    sick=scalar_history(40, zero_rate=lambda step: step),
    healthy=scalar_history(
        400,
        zero_rate=lambda step: 1.0 if step == 0 else 0.0,
        low_rate=lambda step: float(max(0, step - 392)),
        schedule_overrun=constant(0.0),
    ),
    explains=("T802", "T805", "T811"),
)
def spent_schedule(history: History) -> Iterator[Symptom]:
    r"""The learning rate is zero, or far below its peak, while steps go on: the schedule is over too early.

    ## What it measures
    Steps in a row with a rate of zero (`MIN_ZERO_STEPS` = 16), or below 1/1000 of the highest rate so far
    (`MIN_LOW_STEPS` = 16, if they are `MIN_LOW_SHARE` = 20 % of the run). Also calls of a cosine schedule after its
    `T_max`, where its rate rises again: a warning if `T_max` is less than one epoch, else a note.

    ## Why it hurts
    The remaining steps learn nothing. Most often a schedule whose length counts epochs is stepped once per batch, so
    that it is over within the first epoch; or its total was computed from another number of steps.

    ## When it is wrong
    Warm-up from zero and schedules that end at zero with the run are silent. So is a group of frozen parameters with a
    rate of zero beside others. A rate that `ReduceLROnPlateau` lowered because progress stopped
    gets a note, and so does a cosine that is meant to be periodic past `T_max`.

    ## References
    PyTorch documentation, "How to adjust learning rate"; Loshchilov & Hutter, "SGDR", 2017 (the cosine).
    """
    zero, low = value(history, "zero_rate"), value(history, "low_rate")
    steps = (history.step or 0) - (history.first_step or 0) + 1
    if zero >= MIN_ZERO_STEPS:
        yield Symptom(
            severity="warning",
            where="the learning rate",
            since=since(history, "zero_rate"),
            message=f"the learning rate has been 0 for at least {zero:.0f} steps",
            action="Give the schedule as many steps as the run makes, or call `scheduler.step()` once per epoch if its "
            "length counts epochs.",
            forecast="these steps learn nothing",
            evidence={"steps": zero},
        )
    elif low >= MIN_LOW_STEPS and low >= MIN_LOW_SHARE * steps:
        yield Symptom(
            severity="info" if value(history, "plateau_schedule") else "warning",
            where="the learning rate",
            since=since(history, "low_rate"),
            message=f"the learning rate has been below 1/1000 of its peak for at least {low:.0f} of {steps} steps",
            action="Call `scheduler.step()` once per epoch if its length counts epochs, or give it the number of steps "
            "of the whole run.",
            forecast="these steps learn next to nothing",
            evidence={"steps": low, "run": float(steps)},
        )
    yield from _overrun(history)


def _overrun(history: History) -> Iterator[Symptom]:
    calls, length = value(history, "schedule_overrun"), value(history, "schedule_length")
    if calls < MIN_OVERRUN:
        return
    is_within_epoch = 0 < length < value(history, "epoch_batches")
    yield Symptom(
        severity="warning" if is_within_epoch else "info",
        where="the learning rate",
        since=since(history, "schedule_overrun"),
        message=f"the cosine schedule was stepped at least {calls:.0f} times after its end, and its rate rises again",
        action="Set `T_max` to the number of calls of `scheduler.step()` in the whole run.",
        evidence={"calls": calls, "length": length},
    )
