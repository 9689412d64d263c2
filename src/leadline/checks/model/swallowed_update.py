"""U506: the step is so small that rounding removes it."""

from __future__ import annotations

from collections.abc import Iterator

from leadline.checks._check import Symptom, check
from leadline.checks._examples import parameter_step, stack_with_update
from leadline.checks._steps import HALF_PRECISION, MIN_USUAL_RATE
from leadline.records import ParameterStep, Profile, Update

# Heuristic: share of the entries. Half of them do not learn at all, and the steps of the others are too coarse.
MAX_UNCHANGED_SHARE = 0.5


@check(
    code="U506",
    name="swallowed-update",
    since="0.1.0",
    refuted_by="learning",
    explains=("U525",),
    sick=stack_with_update(parameters=(parameter_step(dtype="bfloat16", swallowed=0.9),)),
    healthy=stack_with_update(parameters=(parameter_step(dtype="bfloat16", swallowed=0.2),)),
)
def swallowed_update(profile: Profile) -> Iterator[Symptom]:
    r"""Most weights do not change, because their dtype cannot represent so small a step.

    ## What it measures
    One real step: the share of all entries with a gradient that are bitwise the same after it. Fires above
    `MAX_UNCHANGED_SHARE` = 0.5.

    ## Why it hurts
    A bfloat16 number $w$ has 8 bits: a step smaller than $|w|/512$ is rounded away every time, so small steps never add
    up. Training then stalls at learning rates that are right, and raising the learning rate is wrong. Store the weights
    (or a copy of them, in the optimizer) in float32, or round stochastically. A float32 number has 24 bits: a step that
    is lost is a ten millionth of the weight. Then either the learning rate is far too small (below `MIN_USUAL_RATE` =
    1e-6), or the gradient has vanished.

    ## When it is wrong
    At a learning rate of zero nothing is meant to move; the check does not fire. An optimizer that has float32 copies
    of the weights and writes them back rounded loses nothing over many steps.

    ## References
    Micikevicius et al., "Mixed precision training", 2018, section 3.1; Zamirai et al., "Revisiting bfloat16 training",
    2020, section 3.
    """
    if profile.update is None or not profile.update.lr:
        return
    counted = [each for each in profile.update.parameters if each.swallowed is not None]
    moved = [each for each in profile.update.parameters if each.grad_norm > 0 or each.swallowed is not None]
    total = sum(each.count for each in moved)
    unchanged = sum((each.swallowed or 0.0) * each.count for each in counted)
    if total and unchanged > MAX_UNCHANGED_SHARE * total:
        worst = max(counted, key=lambda each: (each.swallowed or 0.0) * each.count)
        yield Symptom(
            severity="warning",
            where=worst.name,
            message=f"{100 * unchanged / total:.0f} % of the weights are the same after a step: "
            f"rounding to {worst.dtype} removes it",
            action=_action(profile.update, worst),
            evidence={"swallowed": unchanged / total, "lr": profile.update.lr},
        )


def _action(update: Update, worst: ParameterStep) -> str:
    if worst.dtype in HALF_PRECISION:
        return f"Store the weights in float32 (`model.float()`) and compute in {worst.dtype} with `torch.autocast`."
    if update.lr and update.lr < MIN_USUAL_RATE:
        safe = f" up to {update.safe_lr:.2g}, which is still safe" if update.safe_lr else " above 1e-6"
        return f"Raise the learning rate from {update.lr:.2g}{safe}."
    return (
        f"Find where the gradient vanishes before `{worst.name}`, where its norm is {worst.grad_norm:.2g}, and fix "
        "that first."
    )
