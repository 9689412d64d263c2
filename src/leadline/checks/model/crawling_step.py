"""U522: steps that are too small to make progress."""

from __future__ import annotations

from collections.abc import Iterator

from leadline.checks._check import Symptom, check
from leadline.checks._examples import stack_with_step_size
from leadline.checks._steps import StepSize, is_warming_up, step_size_of
from leadline.records import Margin, Profile, Rehearsal, Update
from leadline.text import on_batches

# Calibrated by benchmarks/verdicts: median of update over weight per step, for Adam and similar optimizers.
MIN_RELATIVE_STEP = 3e-4
# Calibrated by benchmarks/verdicts: predicted decrease of the loss per step over the loss, for SGD.
MIN_PREDICTED_DECREASE = 2e-3
# Heuristic: a larger number of steps has no meaning.
MAX_SHOWN_STEPS = 1e4


def _margins(profile: Profile) -> Iterator[Margin]:
    step = step_size_of(profile)
    if step is None:
        return
    if step.family == "adam":
        quantity, value, limit = "step over weight, median", step.relative, MIN_RELATIVE_STEP
    else:
        quantity, value, limit = (
            "predicted decrease of a step over the loss",
            step.predicted_decrease,
            MIN_PREDICTED_DECREASE,
        )
    yield Margin(quantity=quantity, value=value, limit=limit, side="above")


@check(
    code="U522",
    name="crawling-step",
    since="0.1.0",
    refuted_by="learning",
    explains=("U525",),
    margins=_margins,
    sick=stack_with_step_size(relative=1e-5, predicted_decrease=1e-4),
    healthy=stack_with_step_size(relative=0.01, predicted_decrease=0.1),
)
def crawling_step(profile: Profile) -> Iterator[Symptom]:
    r"""Optimizer steps are so small that learning takes thousands of them to begin.

    ## What it measures
    For Adam and similar optimizers, the median over matrices of $\eta / \mathrm{rms}(W)$: fires below
    `MIN_RELATIVE_STEP` = 3e-4 per step. For SGD, the predicted decrease of the first step, $\eta \lVert g \rVert^2 /
    (1 - \mu)$, over the loss: fires below `MIN_PREDICTED_DECREASE` = 0.2 %. For both, a rehearsal of 64 to
    256 steps: fires if the loss falls without interruption, and at its pace it takes more than
    `MAX_STEPS_TO_CONSTANT` = 1000 steps to reach the loss of the best constant output, before which nothing is learned.
    It is a note during the warm-up of a `torch.optim.lr_scheduler`.

    ## Why it hurts
    A weight that moves by 3e-4 of its size per step needs three thousand steps in one direction to change completely.
    With an optimizer that is linear in the gradient, small gradients (dead or saturated units, squashed logits, a long
    way from the loss) make steps that are small in proportion.

    ## When it is wrong
    Fine-tuning moves trained weights little on purpose. A model that starts at zero (ReZero, Fixup) has small gradients
    at first, which grow within a few steps. A warm-up of your own may have just begun.

    ## References
    Calibrated on trained networks: `benchmarks/verdicts`.
    """
    update, step = profile.update, step_size_of(profile)
    if update is None:
        return
    diagnosis = None if step is None else _diagnose_step(step)
    if diagnosis is None and profile.rehearsal is not None and profile.rehearsal.crawls and update.lr:
        diagnosis = _describe(profile.rehearsal, update), None
    if diagnosis is None:
        return
    message, factor = diagnosis
    sizes = (
        {} if step is None else {"relative_step": step.relative, "promised_share": step.predicted_decrease}
    )
    yield Symptom(
        severity="info" if is_warming_up(profile) else "warning",
        where="the optimizer",
        message=message,
        action=_action(update, factor),
        evidence={"lr": update.lr or 0.0} | sizes,
    )


def _diagnose_step(step: StepSize) -> tuple[str, float | None] | None:
    """The message, and the factor by which to raise the learning rate; None if the step is not too small."""
    subject = f"one step of {step.optimizer} at learning rate {step.lr:.3g}"
    if step.family == "adam" and step.relative < MIN_RELATIVE_STEP:
        steps = f"it takes {1 / step.relative:.2g} steps to change one completely"
        factor = MIN_RELATIVE_STEP / step.relative
        return f"{subject} moves the weights by only {step.relative:.2g} of their size: {steps}", factor
    if step.family == "sgd" and 0 < step.predicted_decrease < MIN_PREDICTED_DECREASE:
        steps = f"it takes {1 / step.predicted_decrease:.2g} steps at that pace"
        factor = MIN_PREDICTED_DECREASE / step.predicted_decrease
        return (
            f"{subject} lowers the loss by only {step.predicted_decrease:.2g} of its value: {steps}",
            factor,
        )
    return None


def _describe(rehearsal: Rehearsal, update: Update) -> str:
    first, last = rehearsal.first, rehearsal.last
    more = min(rehearsal.steps_to_constant, MAX_SHOWN_STEPS)
    place = on_batches(rehearsal.batches, is_split=rehearsal.is_split)
    return (
        f"{rehearsal.steps} steps of {update.optimizer} at learning rate {update.lr:.3g} lower the loss "
        f"{place} only from {first:.3g} to {last:.3g}: it takes at least {more:.0f} more to "
        "reach the loss of a constant output"
    )


def _action(update: Update, factor: float | None) -> str:
    safe, rate = update.safe_lr, update.lr or 0.0
    needed = rate * factor if factor is not None else None
    if needed and (safe is None or needed <= safe):
        return f"Raise the learning rate to at least {needed:.2g}."
    if safe is None:
        return (
            f"Raise the learning rate above {rate:.3g} until the loss on one batch falls within a few steps."
        )
    if safe > rate:
        return f"Raise the learning rate toward {safe:.2g}, which is still safe."
    return "Fix what makes the gradient small, which other findings name, because a higher learning rate is not safe."
