"""I309: a loss that expects logits gets values that are already squashed."""

from __future__ import annotations

from collections.abc import Iterator

from leadline.checks._check import Symptom, check
from leadline.checks._examples import stack_with
from leadline.records import Head, ModelFacts, Profile

# By loss that expects logits, the ops whose output it must not get.
SQUASHING_OPS = {
    "cross_entropy": ("softmax", "sigmoid", "relu", "relu6", "tanh", "hardsigmoid"),
    "binary_cross_entropy_with_logits": ("sigmoid", "relu", "relu6", "hardsigmoid", "softmax"),
}
# The same for ops by which a handwritten loss makes probabilities.
SQUASHED_BEFORE = {
    "softmax": SQUASHING_OPS["cross_entropy"],
    "log_softmax": SQUASHING_OPS["cross_entropy"],
    "logsumexp": ("softmax", "sigmoid"),
    "sigmoid": SQUASHING_OPS["binary_cross_entropy_with_logits"],
    "logsigmoid": SQUASHING_OPS["binary_cross_entropy_with_logits"],
}


def _example(behind: str) -> Profile:
    head = Head(loss="cross_entropy", value=2.3, classes=10, logit_ms=0.01, logit_max=0.2, behind=behind)
    return stack_with(ModelFacts(head=head))


@check(
    code="I309",
    name="squashed-logits",
    since="0.1.0",
    explains=("U522",),
    sick=_example("softmax"),
    healthy=_example(""),
)
def squashed_logits(profile: Profile) -> Iterator[Symptom]:
    r"""A loss that expects logits gets the output of a softmax, a sigmoid or a ReLU.

    ## What it measures
    Whether the input of `cross_entropy` or `binary_cross_entropy_with_logits` is the output of an activation or a
    softmax. A `log_softmax` does not fire, because applying it twice changes nothing. A loss that is written by hand
    and applies its own sigmoid or softmax is looked at in the same way.

    ## Why it hurts
    The loss applies its own softmax. From probabilities between 0 and 1 it makes at most $e / (e + C - 1)$ for the
    right class: with ten classes the loss cannot fall below 1.46, and gradients are always small. After a ReLU no logit
    can be negative, and a class whose logit is zero for all samples never gets a gradient again.

    ## When it is wrong
    A factor between the two raises the bound. From 10 on (a soft cap of logits, $30 \tanh(x/30)$, has 30) the check
    does not fire; with few classes a smaller factor may be enough, too.

    ## References
    PyTorch documentation, `torch.nn.CrossEntropyLoss` (the input is expected to contain unnormalized logits).
    """
    head = profile.facts.head if profile.facts else None
    if head is not None and head.behind in SQUASHING_OPS.get(head.loss, ()):
        place = "before the loss" if head.place is None else f"in {head.place}"
        yield Symptom(
            severity="warning",
            where="the loss",
            message=f"{head.loss} expects logits but gets the output of {head.behind}: it applies its own "
            f"{'softmax' if head.loss == 'cross_entropy' else 'sigmoid'}, and the first loss is {head.mean:.3g}",
            action=f"Delete the {head.behind} {place} and pass the logits to `F.{head.loss}`.",
            evidence={"loss": head.mean},
        )
    elif head is not None and head.behind in SQUASHED_BEFORE.get(head.squashed_by, ()):
        yield Symptom(
            severity="warning",
            where="the loss",
            message=f"the loss applies {head.squashed_by} to the output of {head.behind}, which squashed it before",
            action=f"Delete the {head.behind} before the loss, and return the scores.",
            evidence={"loss": head.mean},
        )
