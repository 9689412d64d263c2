"""U504: the first step is too long without a warm-up."""

from __future__ import annotations

from collections.abc import Iterator

from leadline.checks._check import Symptom, check
from leadline.checks._examples import stack_with_update
from leadline.checks._steps import long_step_severity, rate_over_safe_rate, step_evidence
from leadline.records import Profile

# Derived: learning rate over the safe rate. Up to twice the safe rate a step still lowers a quadratic loss.
MAX_RATE_RATIO_WITHOUT_WARMUP = 2.0


@check(
    code="U504",
    name="warm-up-needed",
    since="0.1.0",
    sick=stack_with_update(safe_lr=2e-4, warmup_steps=2000),
    healthy=stack_with_update(safe_lr=8e-4, warmup_steps=2000),
)
def warm_up_needed(profile: Profile) -> Iterator[Symptom]:
    r"""At the full learning rate the first step does less than half of what the gradient predicts.

    ## What it measures
    For a fresh optimizer, its learning rate over the safe one, at which measured and predicted change of the loss
    differ by half. It is a note above `MAX_RATE_RATIO_WITHOUT_WARMUP` = 2 if neither U501 nor U502 fires. The suggested
    length is that of a linear warm-up whose first step is safe, and at least $2/(1-\beta_2)$ steps for optimizers with
    running mean squares.

    ## Why it hurts
    Adam's first step moves every entry by the full learning rate, in the direction of the sign of a single gradient.
    Later steps average many gradients and partly cancel. The first steps can destroy the initialization.

    ## When it is wrong
    The check cannot see a schedule, so it is only a note: there may be a warm-up already.

    ## References
    Ma and Yarats, "On the adequacy of untuned warmup for adaptive optimization", 2021, section 5 ($2/(1-\beta_2)$);
    Goyal et al., "Accurate, large minibatch SGD", 2017, section 2.2.
    """
    update = profile.update
    ratio = rate_over_safe_rate(update)
    if update is None or ratio is None or update.steps or not update.warmup_steps:
        return
    if ratio > MAX_RATE_RATIO_WITHOUT_WARMUP and not long_step_severity(update):
        yield Symptom(
            severity="info",
            where="the whole model",
            message=f"the first step at learning rate {update.lr:.3g} is {ratio:.3g} times as long as a safe one: "
            f"the safe rate is {update.safe_lr:.3g}",
            action=f"Warm the learning rate up over {update.warmup_steps} steps with "
            f"`leadline.nn.schedule(..., warmup_steps={update.warmup_steps})`, unless your schedule does so already.",
            evidence={**step_evidence(update), "warmup_steps": float(update.warmup_steps)},
        )
