"""U521: one step is larger than the weights it changes."""

from __future__ import annotations

from collections.abc import Iterator

from leadline.checks._check import Symptom, check
from leadline.checks._examples import stack_with_step_size
from leadline.checks._steps import step_size_of
from leadline.records import Margin, Profile

MOST = {
    "adam": 1.0,
    "sgd": 0.5,
}  # of a weight's size; calibrated by benchmarks/verdicts: all but one above failed


def _margins(profile: Profile) -> Iterator[Margin]:
    step = step_size_of(profile)
    if step is not None:
        yield Margin(quantity="step over weight, median", value=step.relative, limit=MOST[step.family])


@check(
    code="U521",
    name="overwriting-step",
    since="0.1.0",
    refuted_by="falling",
    explains=("U502", "U503", "U504", "U509", "U523"),
    margins=_margins,
    sick=stack_with_step_size(relative=3.0, promised=20.0),
    healthy=stack_with_step_size(relative=0.05),
)
def overwriting_step(profile: Profile) -> Iterator[Symptom]:
    r"""One optimiser step changes the weights by more than their own size.

    ## What it measures
    The median over matrices of the size of the first step over that of the weight: $\eta / \mathrm{rms}(W)$ for Adam
    and its kin, $\eta\, \mathrm{rms}(g) / ((1-\mu)\, \mathrm{rms}(W))$ for SGD with momentum $\mu$. Fires above 1
    for Adam, above 1/2 for SGD. A note if the
    step, measured, lowers the loss by more than 6 % all the same.

    ## Why it hurts
    After one step nothing is left of the initialisation and of the gains it was chosen for. Healthy runs move weights
    by a thousandth to a tenth of their size in a step.

    ## When it is wrong
    If a warm-up starts far below the rate the optimiser holds now. Matrices that start near zero on purpose are moved
    by many times their size; the median over all of them allows for some.

    ## References
    Derived from the update rules; Karpathy, CS231n notes, "Neural networks part 3" (ratio of updates to weights near
    $10^{-3}$).
    """
    step = step_size_of(profile)
    if step is not None and step.relative > MOST[step.family]:
        yield Symptom(
            severity="info" if step.lowers_loss else "error",
            where="the optimiser",
            message=f"one step of {step.optimizer} at rate {step.lr:.3g} moves the weights by {step.relative:.3g} "
            "times their own size: nothing of the initialisation survives it",
            evidence={"relative_step": step.relative, "lr": step.lr},
        )
