"""The numbers that a fix is to change, before and after."""

from __future__ import annotations

from collections.abc import Iterator

from leadline.fixes.comparison import end
from leadline.records import Measure, Trial
from leadline.report import Report
from leadline.report.depth import gains


def measures(before: Report, after: Report, trial: Trial | None) -> tuple[Measure, ...]:
    """Those that were measured on at least one side."""
    found = (*_signal(before, after), *_step(before, after), *_training(trial))
    return tuple(each for each in found if each.before is not None or each.after is not None)


def _signal(before: Report, after: Report) -> Iterator[Measure]:
    one, other = (
        gains(each.profile, 0) if each.profile.streams else (None, None) for each in (before, after)
    )
    yield Measure(name="signal, change a block", before=one[0], after=other[0])
    yield Measure(name="gradient, change a block", before=one[1], after=other[1])
    yield Measure(name="loss before training", before=before.profile.loss, after=after.profile.loss)


def _step(before: Report, after: Report) -> Iterator[Measure]:
    one, other = before.profile.update, after.profile.update
    yield Measure(
        name="fall of the loss in one step",
        before=None if one is None else -one.measured_loss_change,
        after=None if other is None else -other.measured_loss_change,
    )


def _training(trial: Trial | None) -> Iterator[Measure]:
    if trial is not None:
        steps = len(trial.treated)
        yield Measure(name=f"loss after {steps} steps", before=end(trial.untreated), after=end(trial.treated))
