"""D912: the size of the loss depends on the size of the batch."""

from __future__ import annotations

from collections.abc import Iterator

from leadline.checks._check import Symptom, check
from leadline.checks._steps import long_step_severity, optimizer_family
from leadline.checks._wiring_examples import asked
from leadline.records import Profile, Severity

# Derived: a mean over samples gives 1 and a sum gives 2; between them lie means over tokens of unequal halves.
MIN_WHOLE_OVER_HALVES = 1.9
# Derived: a target has the weight 1 in a sum and 1/n in a mean over n targets, of which there are at least 8.
MIN_WEIGHT_OF_SUM = 0.5


@check(
    code="D912",
    name="summed-loss",
    since="0.1.0",
    explains=("U501", "U502", "U521", "U523"),
    sick=asked(whole_over_halves=2.0),
    healthy=asked(whole_over_halves=1.0),
)
def summed_loss(profile: Profile) -> Iterator[Symptom]:
    r"""The loss is a sum over the samples of the batch, not a mean.

    ## What it measures
    The loss of the batch over the mean of the losses of its two halves, at the same outputs: 1 for a mean, 2 for a sum.
    Where the model computes its own loss, the weight of each class target is read from the gradient at its scores: 1 in
    a sum.

    ## Why it hurts
    Gradients grow with the batch. The learning rate, clipping and an accumulated gradient mean something else as soon
    as the batch size changes, and the last, smaller batch of an epoch counts less.

    ## When it is wrong
    It is a note: a sum is a choice, and adaptive optimizers ignore a constant factor. With steps linear in the gradient
    (SGD) that are far beyond the safe rate it is a warning, because the sum makes them as many times longer as there
    are samples.

    ## References
    PyTorch documentation, `reduction="sum"`.
    """
    question = profile.question
    ratio = question.whole_over_halves if question else None
    reduction = question.reduction if question else None
    if ratio is not None and ratio >= MIN_WHOLE_OVER_HALVES:
        yield Symptom(
            severity=_severity(profile),
            where="the loss",
            message=f"the loss of the batch is {ratio:.2g} times the mean loss of its halves: it sums over samples",
            action='Use `reduction="mean"`, so that the learning rate does not depend on the batch size.',
            evidence={"whole_over_halves": ratio},
        )
    elif (
        reduction is not None
        and ratio is None
        and reduction.total_weight >= MIN_WEIGHT_OF_SUM * reduction.targets
    ):
        yield Symptom(
            severity=_severity(profile),
            where="the loss",
            message=f"each of the {reduction.targets} targets has a weight of "
            f"{reduction.total_weight / reduction.targets:.2g} in the loss: it sums over them",
            action='Use `reduction="mean"`, so that the learning rate does not depend on the batch size.',
            evidence={"total_weight": reduction.total_weight},
        )


def _severity(profile: Profile) -> Severity:
    is_too_long = optimizer_family(profile) == "sgd" and long_step_severity(profile.update) is not None
    return "warning" if is_too_long else "info"
