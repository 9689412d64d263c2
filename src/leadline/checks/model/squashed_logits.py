"""I309: the loss applies its own softmax to something that is squashed already."""

from __future__ import annotations

from collections.abc import Iterator

from leadline.checks._check import Symptom, check
from leadline.checks._examples import stack_with
from leadline.records import Facts, Head, Profile

SQUASHING = {  # what must not stand in front of a loss that expects logits
    "cross_entropy": ("softmax", "sigmoid", "relu", "relu6", "tanh", "hardsigmoid"),
    "binary_cross_entropy_with_logits": ("sigmoid", "relu", "relu6", "hardsigmoid", "softmax"),
}


def _example(behind: str) -> Profile:
    head = Head(loss="cross_entropy", value=2.3, classes=10, logit_ms=0.01, logit_max=0.2, behind=behind)
    return stack_with(Facts(head=head))


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
    Whether the tensor that `cross_entropy` or `binary_cross_entropy_with_logits` reads was made by an activation or a
    softmax. A `log_softmax` does not fire: applying it twice changes nothing.

    ## Why it hurts
    The loss takes its own softmax. Of probabilities between 0 and 1 it can make at best $e / (e + C - 1)$ for the right
    class: with ten classes the loss cannot fall below 1.46, and gradients are small throughout. Behind a ReLU no
    logit can be negative, and a class whose logit is zero for all samples never gets a gradient again.

    ## When it is wrong
    A factor between the two lifts the bound: from 10 on (a soft cap of logits, $30 \tanh(x/30)$, has 30) it does not
    fire, and a smaller one may do too where classes are few.

    ## References
    PyTorch documentation, `torch.nn.CrossEntropyLoss` (the input is expected to contain unnormalised logits).
    """
    head = profile.facts.head if profile.facts else None
    if head is not None and head.behind in SQUASHING.get(head.loss, ()):
        yield Symptom(
            severity="warning",
            where="the loss",
            message=f"{head.loss} gets the output of {head.behind}, and expects logits: it applies its own "
            f"{'softmax' if head.loss == 'cross_entropy' else 'sigmoid'}",
            evidence={"loss": head.value},
        )
