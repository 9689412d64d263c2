"""I308: the first loss is far above that of guessing."""

from __future__ import annotations

import math
from collections.abc import Iterator

from leadline.checks._check import Symptom, check
from leadline.checks._examples import stack_with
from leadline.checks._steps import optimizer_family
from leadline.records import Facts, Head, Margin, Profile

ABOVE = 4.0  # nats above ln C; derived: independent logits of variance s^2 cost about s^2 / 2, so s = 2.8

ABOVE_ADAM = 200.0  # nats, scale-free optimisers; calibrated by benchmarks/verdicts: such networks learned all the same


def _example(value: float, logit_ms: float) -> Profile:
    head = Head(
        loss="cross_entropy",
        value=value,
        classes=10,
        logit_ms=logit_ms,
        logit_max=3 * math.sqrt(logit_ms),
        behind="",
    )
    return stack_with(Facts(head=head))


def _margins(profile: Profile) -> Iterator[Margin]:
    head = profile.facts.head if profile.facts else None
    if head is not None and head.classes and head.classes > 1:
        yield Margin(
            quantity="first loss above that of guessing, nats",
            value=head.value - math.log(head.classes),
            limit=ABOVE_ADAM if optimizer_family(profile) == "adam" else ABOVE,
        )


@check(
    code="I308",
    name="initial-loss-off",
    since="0.1.0",
    refuted_by="learning",
    explains=("U502", "U509", "U503", "U504"),
    margins=_margins,
    sick=_example(31.0, 900.0),
    healthy=_example(2.45, 0.4),
)
def initial_loss_off(profile: Profile) -> Iterator[Symptom]:
    r"""The first cross entropy is far above $\ln C$, that of guessing among $C$ classes.

    ## What it measures
    The cross entropy on this batch against $\ln C$, $C$ the number of logits. Independent logits of variance $s^2$
    cost about $s^2/2$ more. Fires `ABOVE` = 4 nats above; with Adam and its kin, which take the same steps whatever the
    gradient's size, it is a note up to `ABOVE_ADAM` = 200.

    ## Why it hurts
    The network starts out certain of answers that are wrong. The first steps go into shrinking the logits; the
    gradient of a saturated softmax does not see small improvements, and its size is far from what clipping and rates
    were chosen for. The cause is the head (a weight that is too large, or tied to an embedding of variance 1) or a
    stream that grew on its way there.

    ## When it is wrong
    A model that is already trained and sees other data may have any loss.

    ## References
    Andrej Karpathy, "A recipe for training neural networks", 2019 ("verify loss at init").
    """
    head = profile.facts.head if profile.facts else None
    if head is None or not head.classes or head.classes < 2 or not math.isfinite(head.value):
        return
    guess = math.log(head.classes)
    if head.value - guess <= ABOVE:
        return
    logits = f"; logits have a mean square of {head.logit_ms:.3g}" if head.logit_ms is not None else ""
    bearable = optimizer_family(profile) == "adam" and head.value - guess <= ABOVE_ADAM
    yield Symptom(
        severity="info" if bearable else "warning",
        where="the loss",
        message=f"the first loss is {head.value:.3g}, and guessing among {head.classes} classes costs ln C = "
        f"{guess:.3g}{logits}",
        evidence={"loss": head.value, "guess": guess}
        | ({} if head.logit_ms is None else {"logit_ms": head.logit_ms}),
    )
