"""U509: the first steps raise the loss, and nothing is learned."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from leadline.checks._check import Symptom, check
from leadline.checks._examples import stack_with_update
from leadline.checks._steps import lower_rate_action
from leadline.records import Margin, Profile, Rehearsal, Update
from leadline.records.rehearsal import MAX_RISE
from leadline.text import on_batches, plural

# Heuristic: factor by which to lower the learning rate if no lower rate is known to be safe.
MIN_RATE_REDUCTION = 10.0


def _rehearsed(losses: Sequence[float]) -> Profile:
    return replace(stack_with_update(), rehearsal=Rehearsal(losses=tuple(losses), constant=2.2))


def _margins(profile: Profile) -> Iterator[Margin]:
    if profile.rehearsal is not None:
        quantity = "highest loss of the rehearsal over the lowest before it"
        yield Margin(quantity=quantity, value=profile.rehearsal.rise, limit=MAX_RISE)


@check(
    code="U509",
    name="restless-steps",
    since="0.1.0",
    margins=_margins,
    sick=_rehearsed([2.3, 2.2, 9.0, 3.0, 5.0]),
    healthy=_rehearsed([2.3, 2.2, 2.4, 2.0, 1.7]),
)
def restless_steps(profile: Profile) -> Iterator[Symptom]:
    r"""A few steps raise the loss and end no better than a constant output.

    ## What it measures
    A rehearsal: the user's optimizer makes up to `MAX_REHEARSAL_STEPS` = 256 steps on half of the batch (or on the
    first few in turn, if the case has more), which are undone. Fires if some step takes the loss of a batch to more
    than `MAX_RISE` = 1.3 times its lowest value before (or to NaN), the last loss is not `MIN_FALLING_PROGRESS` = 10 %
    below that of the best constant output (for classes, the entropy of their shares), and the loss does not settle: its
    median over the last quarter of the steps is not `MIN_SETTLING_FALL` = 1.3 times below that of the second quarter.
    It is an error if the loss becomes NaN or more than twice the first loss, or if the model raises an error that it
    raises again when the pass is repeated.

    ## Why it hurts
    Nothing is easier to learn than a few repeated batches. Steps that undo each other there are too long for the
    sharpest direction of the loss; new batches only add noise. Networks that start at zero (ReZero, Fixup) show it
    only here: their first step moves little, and their branches have opened by the second.

    ## When it is wrong
    The rehearsal uses the present learning rate; a warm-up may start far below it. Adam's first steps are its largest,
    and some networks settle after them.

    ## References
    Cohen et al., "Gradient descent on neural networks typically occurs at the edge of stability", 2021. Thresholds:
    `benchmarks/verdicts`.
    """
    rehearsal = profile.rehearsal
    if rehearsal is None or not rehearsal.is_restless:
        return
    rate = None if profile.update is None else profile.update.lr
    setting = "" if rate is None else f" at learning rate {rate:.3g}"
    place = on_batches(rehearsal.batches, is_split=rehearsal.is_split)
    yield Symptom(
        severity="error" if rehearsal.has_spike else "warning",
        where="the optimizer",
        message=f"{plural(rehearsal.steps, 'step')}{setting} {place} {_describe(rehearsal)}",
        action=_action(profile.update),
        evidence={
            "first": rehearsal.first,
            "last": rehearsal.last,
            "rise": rehearsal.rise,
            "steps": float(rehearsal.steps),
        },
    )


def _describe(rehearsal: Rehearsal) -> str:
    first, last = rehearsal.first, rehearsal.last
    if rehearsal.error:
        return f"made the model raise {rehearsal.error}"
    if not all(map(math.isfinite, rehearsal.losses)):
        return f"turned the loss from {first:.3g} into NaN or infinity"
    return (
        f"took the loss from {first:.3g} to {last:.3g}: it was up to {max(rehearsal.losses):.3g} on the way"
    )


def _action(update: Update | None) -> str:
    if update is None or not update.lr:
        return "Lower the learning rate, or warm it up with `leadline.nn.schedule`."
    return lower_rate_action(update, update.lr / MIN_RATE_REDUCTION)
