"""D930: targets count differently, depending on which sample or micro-batch they are in."""

from __future__ import annotations

from collections.abc import Iterator

from leadline.checks._check import Symptom, check
from leadline.checks._wiring_examples import asked
from leadline.records import Profile
from leadline.records.wiring import Reduction

# Heuristic: below this, the lengths of texts in two halves of a batch differ by chance.
MIN_UNEVEN_RATIO = 1.25
# Derived: the weights in a mean add up to 1, apart from rounding.
MAX_MEAN_ERROR = 0.01


@check(
    code="D930",
    name="uneven-reduction",
    since="0.2.0",
    sick=asked(
        reduction=Reduction(targets=120, total_weight=1.0, halves=(90, 30), largest_over_smallest=1.0)
    ),
    healthy=asked(
        reduction=Reduction(targets=120, total_weight=1.0, halves=(60, 60), largest_over_smallest=1.0)
    ),
)
def uneven_reduction(profile: Profile) -> Iterator[Symptom]:
    r"""A target counts more or less, depending on the sample or the micro-batch that it is in.

    ## What it measures
    The weight of each class target in the loss, from its gradient at the scores: it is $-w$ at the target of `nll_loss`
    and $-w (1 - p)$ at that of a cross entropy, with $p$ the probability of the target. No pass is made for it. Two
    things are worth a note: the weights differ between samples by more than `MIN_UNEVEN_RATIO` = 1.25; or the loss is a
    mean over all targets of the batch, and one half of the batch has 1.25 times as many of them as the other.

    ## Why it hurts
    In the second case the loss of the whole batch is not the mean of the losses of its halves. If you accumulate
    gradients or train on several devices, and average the means, the targets of a short micro-batch count more than
    those of a long one: the same data gives another gradient. In the first case this has happened already within the
    batch: the loss is a mean of means.

    ## When it is wrong
    It is a note: without accumulation a mean over targets is what most people want, and a mean over samples, in which
    short samples count as much as long ones, is a choice. Losses that weigh classes are not looked at.

    ## References
    Hugging Face, "Fixing Gradient Accumulation", 2024 (`num_items_in_batch`).
    """
    reduction = profile.question.reduction if profile.question else None
    if reduction is None:
        return
    if reduction.largest_over_smallest >= MIN_UNEVEN_RATIO:
        yield Symptom(
            severity="info",
            where="the loss",
            message=f"a target of one sample counts {reduction.largest_over_smallest:.2g} times as much as one of "
            "another sample: the loss is a mean of means over unequal numbers of targets",
            action="Add up the losses of all targets and divide once by their number, if each target should count "
            "alike.",
            evidence={"largest_over_smallest": reduction.largest_over_smallest},
        )
    elif _is_mean(reduction) and _ratio(reduction) >= MIN_UNEVEN_RATIO:
        yield Symptom(
            severity="info",
            where="the loss",
            message=f"the loss is a mean over targets, of which one half of the batch has {max(reduction.halves)} and "
            f"the other {min(reduction.halves)}: averaged per micro-batch, those of the second would count "
            f"{_ratio(reduction):.2g} times as much",
            action="Divide the summed loss by the number of targets of the whole batch, if you accumulate gradients "
            "or use several devices.",
            evidence={"targets_ratio": _ratio(reduction)},
        )


def _is_mean(reduction: Reduction) -> bool:
    """Whether it is a mean over targets, also one that is divided by a number of micro-batches."""
    parts = 1 / reduction.total_weight
    return round(parts) >= 1 and abs(parts - round(parts)) <= MAX_MEAN_ERROR * parts


def _ratio(reduction: Reduction) -> float:
    return max(reduction.halves) / max(min(reduction.halves), 1)
