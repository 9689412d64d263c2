"""U523: a step that promises more than there is."""

from __future__ import annotations

from collections.abc import Iterator

from leadline.checks._check import Symptom, check
from leadline.checks._examples import stack_with_step_size
from leadline.checks._steps import step_size_of
from leadline.records import Margin, Profile

MOST = {
    "adam": 10.0,
    "sgd": 50.0,
}  # times the loss; calibrated by benchmarks/verdicts: hardly any that learned has more


def _margins(profile: Profile) -> Iterator[Margin]:
    step = step_size_of(profile)
    if step is not None:
        yield Margin(quantity="promise of a step over the loss", value=step.promised, limit=MOST[step.family])


@check(
    code="U523",
    name="overreaching-step",
    since="0.1.0",
    refuted_by="falling",
    explains=("U502", "U503", "U504", "U509"),
    margins=_margins,
    sick=stack_with_step_size(promised=300.0),
    healthy=stack_with_step_size(promised=1.5),
)
def overreaching_step(profile: Profile) -> Iterator[Symptom]:
    r"""The gradient promises that one step lowers the loss by many times its value.

    ## What it measures
    The change of the loss that the first step would make if the loss were linear, $\eta \lVert g \rVert_1$ for Adam and
    its kin and $\eta \lVert g \rVert^2 / (1-\mu)$ for SGD, over the loss itself. Fires above 10 and 50. A note if the
    step, measured, lowers the loss by more than 6 % all the same.

    ## Why it hurts
    A loss cannot fall below zero, so the promise cannot be kept: the step leaves the region in which the gradient
    means anything. Either the rate is too large, or the gradient explodes on its way through the network.

    ## When it is wrong
    If a warm-up starts far below the rate the optimiser holds now, or gradients are clipped.

    ## References
    Derived; the linear prediction is that of any gradient step. Thresholds: `benchmarks/verdicts`.
    """
    step = step_size_of(profile)
    if step is not None and step.promised > MOST[step.family]:
        yield Symptom(
            severity="info" if step.lowers_loss else "warning",
            where="the optimiser",
            message=f"one step of {step.optimizer} at rate {step.lr:.3g} promises to lower the loss by "
            f"{step.promised:.3g} times its value: far outside of what a gradient can tell",
            evidence={"promised_share": step.promised, "lr": step.lr},
        )
