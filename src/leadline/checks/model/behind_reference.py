"""U530: a plain recipe teaches the same network far more."""

from __future__ import annotations

import math
from collections.abc import Iterator

from msgspec.structs import replace

from leadline.checks._check import Symptom, check
from leadline.checks._examples import stack_with_update
from leadline.records import Profile, ReferenceRun, Rehearsal
from leadline.text import on_batches, plural

# Calibrated by benchmarks/atlas: progress over that of the better reference; most problems below it failed.
MIN_REFERENCE_SHARE = 0.4


def _rehearsed(last: float) -> Profile:
    references = (
        ReferenceRun(losses=(2.3, 1.4, 0.5), lr=1e-2, is_reset=False),
        ReferenceRun(losses=(2.3, 1.2, 0.4), lr=1e-2, is_reset=True),
    )
    rehearsal = Rehearsal(losses=(2.3, 2.2, last), constant=2.2, references=references)
    return replace(stack_with_update(), rehearsal=rehearsal)


@check(
    code="U530",
    name="behind-reference",
    since="0.2.0",
    sick=_rehearsed(2.0),
    healthy=_rehearsed(1.0),
    explains=("U509", "U525"),
)
def behind_reference(profile: Profile) -> Iterator[Symptom]:
    r"""The same network learns far more on the same batches with a plain recipe.

    ## What it measures
    A rehearsal of up to 256 steps with the user's optimizer. If it does not halve the loss to beat, the network is also
    trained for 64 steps of Adam on all of its parameters, without weight decay, once from the user's weights and once
    after `reset_parameters`; the better of the rates 0.001 and 0.01 counts. All of it is undone. Fires if the progress
    of the user's steps is less than `MIN_REFERENCE_SHARE` = 40 % of that of the better reference.

    ## Why it hurts
    What a plain recipe learns in a few dozen steps is there to be learned, by this network, on these batches. If it
    needs the user's optimizer for it too, only from other weights, the initial values are the cause. If it learns from
    the user's weights, the recipe is: its rate, momentum, decay or eps, or what it trains.

    ## When it is wrong
    A few batches can be learned by heart, and faster than what they have in common. A rate that is chosen for a long
    training learns more slowly at first, and so does one that a loop of your own is still warming up; the warm-up of a
    `torch.optim.lr_scheduler` is shortened in the rehearsal.

    ## References
    Derived. Kingma & Ba 2015 for the recipe. Threshold: `benchmarks/atlas`, calibration families.
    """
    rehearsal = profile.rehearsal
    best = None if rehearsal is None else rehearsal.best_reference
    if rehearsal is None or best is None:
        return
    share = rehearsal.share_of(best)
    if share is None or share >= MIN_REFERENCE_SHARE:
        return
    own = next(each for each in rehearsal.references if not each.is_reset)
    own_share = rehearsal.share_of(own)
    is_recipe = own_share is not None and own_share < MIN_REFERENCE_SHARE
    shown = own if is_recipe else best
    yield Symptom(
        severity="warning",
        where="the optimizer" if is_recipe else "the initial weights",
        message=_message(profile, rehearsal, shown),
        action=_action(profile, shown),
        evidence=_evidence(rehearsal, share, shown),
    )


def _message(profile: Profile, rehearsal: Rehearsal, run: ReferenceRun) -> str:
    name = profile.optimizer.name if profile.optimizer else "the optimizer"
    weights = "from weights as torch initializes them" if run.is_reset else "on all parameters"
    last = f"{rehearsal.last:.3g}" if math.isfinite(rehearsal.last) else "NaN or infinity"
    place = on_batches(rehearsal.batches, is_split=rehearsal.is_split)
    return (
        f"{plural(rehearsal.steps, 'step')} of {name} {place} took the loss from "
        f"{rehearsal.first:.3g} to {last}; Adam at {run.lr:g} {weights} takes it to {rehearsal.end_of(run):.3g} in "
        f"{len(run.losses) - 1}"
    )


def _action(profile: Profile, run: ReferenceRun) -> str:
    if run.is_reset:
        return "Remove the line that sets the initial weights, and let the layers keep those that torch gives them."
    rate = profile.update.lr if profile.update is not None else None
    setting = "" if rate is None else f", instead of a rate of {rate:.3g}"
    return (
        f"Train all parameters with `torch.optim.Adam(model.parameters(), lr={run.lr:g})`{setting}, or find what in "
        "your optimizer's rate, momentum, decay, eps or list of parameters holds it back."
    )


def _evidence(rehearsal: Rehearsal, share: float, run: ReferenceRun) -> dict[str, float]:
    numbers = {
        "share": share,
        "last": rehearsal.last,
        "reference": rehearsal.end_of(run),
        "reference_lr": run.lr,
        **({"reset_reached": rehearsal.end_of(run)} if run.is_reset else {}),
    }
    return {name: value for name, value in numbers.items() if math.isfinite(value)}
