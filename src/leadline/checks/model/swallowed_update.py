"""U506: the step is so small that rounding swallows it."""

from __future__ import annotations

from collections.abc import Iterator

from leadline.checks._check import Symptom, check
from leadline.checks._examples import parameter_step, stack_with_update
from leadline.records import ParameterStep, Profile, Update

MOST = (
    0.5  # ours: half of the entries do not learn at all, and those that do move in steps that are too coarse
)
HALF_PRECISION = ("float16", "bfloat16")
SMALL_RATE = 1e-6  # ours: rates in use lie above; where one is smaller, the rate is why a step is small


@check(
    code="U506",
    name="swallowed-update",
    since="0.1.0",
    refuted_by="learning",
    sick=stack_with_update(parameters=(parameter_step(dtype="bfloat16", swallowed=0.9),)),
    healthy=stack_with_update(parameters=(parameter_step(dtype="bfloat16", swallowed=0.2),)),
)
def swallowed_update(profile: Profile) -> Iterator[Symptom]:
    r"""Most weights do not change, because their type cannot hold so small a step.

    ## What it measures
    One real step: the share of all entries with a gradient that are bit for bit the same afterwards. Fires above
    `MOST` = 0.5.

    ## Why it hurts
    A bfloat16 number $w$ has 8 bits: a step smaller than $|w|/512$ is rounded away, in every step anew, so that small
    steps never add up. Training then stalls at rates that are right, and the cure that suggests itself, a higher rate,
    is wrong: keep the weights (or a copy of them, in the optimiser) in float32, or round stochastically. A float32
    number has 24 bits: a step that it swallows is a ten millionth of the weight. Then either the rate is far too small
    (below `SMALL_RATE` = 1e-6), or the gradient has vanished on its way.

    ## When it is wrong
    A rate of zero at the start of a schedule: nothing is meant to move. An optimiser that keeps float32 copies of the
    weights and writes them back rounded loses nothing over many steps.

    ## References
    Micikevicius et al., "Mixed precision training", 2018, section 3.1; Zamirai et al., "Revisiting bfloat16 training",
    2020, section 3.
    """
    if profile.update is None or not profile.update.lr:
        return
    counted = [each for each in profile.update.parameters if each.swallowed is not None]
    total = sum(each.count for each in profile.update.parameters if each.grad_norm > 0)
    still = sum((each.swallowed or 0.0) * each.count for each in counted)
    if total and still > MOST * total:
        worst = max(counted, key=lambda each: (each.swallowed or 0.0) * each.count)
        yield Symptom(
            severity="warning",
            where=worst.name,
            message=f"{still / total:.0%} of the weights are the same after a step: rounding to {worst.dtype} "
            f"swallows it; {_advice(profile.update, worst)}",
            evidence={"swallowed": still / total, "lr": profile.update.lr},
        )


def _advice(update: Update, worst: ParameterStep) -> str:
    if worst.dtype in HALF_PRECISION:
        return "keep float32 copies of the weights, or round stochastically"
    if update.lr and update.lr < SMALL_RATE:
        safe = f" ({update.safe_lr:.3g} is still safe)" if update.safe_lr else ""
        return f"the rate {update.lr:.3g} is too small for anything: raise it{safe}"
    return f"the gradient vanishes (norm {worst.grad_norm:.2g} there): find out where it is lost, or raise the rate"
