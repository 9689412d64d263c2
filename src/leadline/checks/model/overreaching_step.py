"""U523: a step whose gradient predicts that it lowers the loss by many times its value."""

from __future__ import annotations

from collections.abc import Iterator

from leadline.checks._check import Symptom, check
from leadline.checks._examples import stack_with_step_size
from leadline.checks._steps import lower_rate_action, step_size_of
from leadline.records import Margin, Profile

# Calibrated by benchmarks/verdicts: predicted decrease over the loss; hardly any network that learned has more.
MAX_PREDICTED_DECREASE = {"adam": 10.0, "sgd": 50.0}


def _margins(profile: Profile) -> Iterator[Margin]:
    step = step_size_of(profile)
    if step is not None:
        limit = MAX_PREDICTED_DECREASE[step.family]
        yield Margin(
            quantity="predicted decrease of a step over the loss", value=step.predicted_decrease, limit=limit
        )


@check(
    code="U523",
    name="overreaching-step",
    since="0.1.0",
    refuted_by="falling",
    explains=("U502", "U503", "U504", "U509"),
    margins=_margins,
    sick=stack_with_step_size(predicted_decrease=300.0),
    healthy=stack_with_step_size(predicted_decrease=1.5),
)
def overreaching_step(profile: Profile) -> Iterator[Symptom]:
    r"""The gradient predicts that one step lowers the loss by many times its value.

    ## What it measures
    The change of the loss that the first step would make if the loss were linear, $\eta \lVert g \rVert_1$ for Adam and
    similar optimizers and $\eta \lVert g \rVert^2 / (1-\mu)$ for SGD, over the loss itself. Fires above
    `MAX_PREDICTED_DECREASE`, 10 for Adam and 50 for SGD. It is a note if the measured step lowers the loss by more than
    `MIN_LOSS_DROP` = 6 % anyway.

    ## Why it hurts
    Most losses cannot fall below zero, so the prediction cannot come true: the step leaves the region in which the
    gradient describes the loss. Either the learning rate is too large or the gradient explodes in the network.

    ## When it is wrong
    A warm-up may start far below the present learning rate, and clipping may shorten the step.

    ## References
    Derived: the first-order term of the Taylor series. Thresholds: `benchmarks/verdicts`.
    """
    step = step_size_of(profile)
    limit = None if step is None else MAX_PREDICTED_DECREASE[step.family]
    if (
        step is not None
        and profile.update is not None
        and limit is not None
        and step.predicted_decrease > limit
    ):
        yield Symptom(
            severity="info" if step.lowers_loss else "warning",
            where="the optimizer",
            message=f"one step of {step.optimizer} at learning rate {step.lr:.3g} is predicted to lower the loss by "
            f"{step.predicted_decrease:.3g} times its value: it goes far beyond the region that the gradient describes",
            action=lower_rate_action(profile.update, step.lr * limit / step.predicted_decrease),
            evidence={"promised_share": step.predicted_decrease, "lr": step.lr},
        )
