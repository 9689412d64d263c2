"""U504: the first step is longer than it should be; a warm-up would help."""

from __future__ import annotations

from collections.abc import Iterator

from leadline.checks._check import Symptom, check
from leadline.checks._examples import stack_with_update
from leadline.checks._steps import long_step_severity, rate_over_safe_rate, step_evidence
from leadline.records import Profile

WORTHWHILE = 2.0  # derived: up to twice the safe rate a step still lowers a quadratic loss


@check(
    code="U504",
    name="warm-up-needed",
    since="0.1.0",
    sick=stack_with_update(safe_lr=2e-4, warmup_steps=2000),
    healthy=stack_with_update(safe_lr=8e-4, warmup_steps=2000),
)
def warm_up_needed(profile: Profile) -> Iterator[Symptom]:
    r"""At the full rate the first step does less than half of what its gradient promises.

    ## What it measures
    For a fresh optimiser: its rate over the safe one, at which measured and promised change of the loss part by half.
    A note where it is above `WORTHWHILE` = 2 and neither U501 nor U502 fires. The length is that of a
    linear warm-up whose first step is safe; for optimisers with running mean squares at least $2/(1-\beta_2)$ steps.

    ## Why it hurts
    Adam's first step moves every entry by the full rate, in the direction of the sign of a single gradient; later steps
    average many and partly cancel. The first ones can undo the initialisation.

    ## When it is wrong
    If there is a warm-up: a schedule cannot be seen from here. Hence only a note.

    ## References
    Ma and Yarats, "On the adequacy of untuned warmup for adaptive optimization", 2021, section 5 ($2/(1-\beta_2)$);
    Goyal et al., "Accurate, large minibatch SGD", 2017, section 2.2.
    """
    update = profile.update
    found = rate_over_safe_rate(update)
    if (
        update is None
        or found is None
        or update.steps
        or not update.warmup_steps
        or long_step_severity(update)
    ):
        return
    if found > WORTHWHILE:
        yield Symptom(
            severity="info",
            where="the whole model",
            message=f"the first step at rate {update.lr:.3g} is {found:.3g}x a safe one ({update.safe_lr:.3g}): "
            f"warm up over about {update.warmup_steps} steps, unless your schedule, which cannot be seen here, does so",
            evidence={**step_evidence(update), "warmup_steps": float(update.warmup_steps)},
        )
