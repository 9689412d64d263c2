"""I308: the initial loss is far above that of guessing."""

from __future__ import annotations

import math
from collections.abc import Iterator

from leadline.checks._check import Symptom, check
from leadline.checks._examples import stack_with
from leadline.checks._steps import optimizer_family
from leadline.records import Head, Margin, ModelFacts, Profile, Rehearsal

# Derived: nats above ln C. Independent logits of variance s^2 add about s^2 / 2, so s is 2.8.
MAX_EXCESS = 4.0
# Calibrated by benchmarks/verdicts: nats above ln C up to which networks learned with Adam and similar optimizers.
MAX_EXCESS_ADAM = 200.0
# Heuristic: mean square of the logits; a head alone is not a hundred times too large, so the signal before it is.
MAX_HEAD_POWER = 1e4
# Calibrated by benchmarks/atlas: first loss over that of a constant output, for other losses than cross entropy. A
# healthy family starts at 12; outputs of ten times the spread of the targets have a squared error of a hundred times.
MAX_START_RATIO = 100.0


def _example(value: float, logit_ms: float) -> Profile:
    head = Head(
        loss="cross_entropy",
        value=value,
        classes=10,
        logit_ms=logit_ms,
        logit_max=3 * math.sqrt(logit_ms),
        behind="",
    )
    return stack_with(ModelFacts(head=head))


def _margins(profile: Profile) -> Iterator[Margin]:
    head = profile.facts.head if profile.facts else None
    if head is not None and head.classes and head.classes > 1:
        yield Margin(
            quantity="first loss above that of guessing, nats",
            value=head.mean - math.log(head.classes),
            limit=MAX_EXCESS_ADAM if optimizer_family(profile) == "adam" else MAX_EXCESS,
        )


@check(
    code="I308",
    name="initial-loss-off",
    since="0.1.0",
    refuted_by="learning",
    explains=("U502", "U509", "U503", "U504", "U525"),
    margins=_margins,
    sick=_example(31.0, 900.0),
    healthy=_example(2.45, 0.4),
)
def initial_loss_off(profile: Profile) -> Iterator[Symptom]:
    r"""The initial loss is far above that of guessing, so the network starts out certain of wrong answers.

    ## What it measures
    The cross entropy on this batch minus $\ln C$, where $C$ is the number of logits. Independent logits of variance
    $s^2$ add about $s^2/2$. Fires above `MAX_EXCESS` = 4 nats. With Adam and similar optimizers, whose steps do not
    depend on the size of the gradient, it is a note up to `MAX_EXCESS_ADAM` = 200 nats. For any other loss, the first
    loss of the rehearsal over the loss to beat, which is that of the best constant output (or of the network with new
    weights, where no constant is known): fires above `MAX_START_RATIO` = 100.

    ## Why it hurts
    The network starts out certain of wrong answers. The first steps only shrink the outputs, the gradient of a
    saturated softmax does not respond to small improvements, and its size is far from that for which clipping and
    learning rate were chosen. The cause is the head (a weight that is too large, or tied to an embedding of variance 1)
    or a stream that has grown before it.

    ## When it is wrong
    A trained model on other data may have any loss: it is a note if most matrices were trained before.

    ## References
    Andrej Karpathy, "A recipe for training neural networks", 2019 ("verify loss at init").
    """
    head = profile.facts.head if profile.facts else None
    if head is None or not head.classes or head.classes < 2:
        yield from _compare_with_constant(profile.rehearsal)
        return
    if not math.isfinite(head.mean):
        return
    guess = math.log(head.classes)
    if head.mean - guess <= MAX_EXCESS:
        return
    logits = f": the logits have a mean square of {head.logit_ms:.3g}" if head.logit_ms is not None else ""
    tolerated = optimizer_family(profile) == "adam" and head.mean - guess <= MAX_EXCESS_ADAM
    yield Symptom(
        severity="info" if tolerated else "warning",
        where="the loss",
        message=f"the initial loss is {head.mean:.3g} where guessing among {head.classes} classes gives {guess:.3g}"
        f"{logits}",
        action=_action(head),
        evidence={"loss": head.mean, "guess": guess}
        | ({} if head.logit_ms is None else {"logit_ms": head.logit_ms}),
    )


def _compare_with_constant(rehearsal: Rehearsal | None) -> Iterator[Symptom]:
    """A symptom if the outputs start so far off that a constant output would be far better."""
    if rehearsal is None or not 0 < rehearsal.to_beat * MAX_START_RATIO < rehearsal.first < math.inf:
        return
    what = "the network with new weights" if rehearsal.constant is None else "the best constant output"
    yield Symptom(
        severity="warning",
        where="the loss",
        message=f"the initial loss is {rehearsal.first:.3g} where {what} has {rehearsal.to_beat:.3g}: the outputs "
        "start far too large",
        action="Initialize the last layer with a smaller standard deviation, or with torch's own initializer.",
        evidence={"loss": rehearsal.first, "guess": rehearsal.to_beat},
    )


def _action(head: Head) -> str:
    if head.logit_ms is None or not head.logit_ms > 1:
        return "Initialize the weight of the last layer with a smaller standard deviation."
    if head.logit_ms > MAX_HEAD_POWER:
        return (
            "Put `nn.LayerNorm` before the last layer, because the signal that reaches it is far too large."
        )
    return (
        f"Multiply the initial weight of the last layer by {head.logit_ms**-0.5:.2g} to get logits of size 1."
    )
