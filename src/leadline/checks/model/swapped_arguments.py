"""D936: a loss gets its targets as predictions."""

from __future__ import annotations

from collections.abc import Iterator

from leadline.checks._check import Symptom, check
from leadline.checks._wiring_examples import asked
from leadline.records import Profile


@check(
    code="D936",
    name="swapped-arguments",
    since="0.2.0",
    sick=asked(swapped="binary_cross_entropy"),
    healthy=asked(loss="binary_cross_entropy"),
)
def swapped_arguments(profile: Profile) -> Iterator[Symptom]:
    r"""The target of a loss op learns, and its prediction is given: the arguments are exchanged.

    ## What it measures
    For `cross_entropy`, `nll_loss`, `kl_div` and binary cross entropies, which of the two arguments has a gradient. The
    first is the prediction. Losses that are the same both ways, such as a squared error, are not looked at.

    ## Why it hurts
    With exchanged arguments a binary cross entropy is a linear function of the prediction: it takes the logarithm of
    labels, which is cut off at -100, and has no minimum at the right probability.

    ## When it is wrong
    `kl_div` with exchanged arguments is the divergence in the other direction, which some methods of distillation want;
    there it is a note.

    ## References
    PyTorch documentation, `torch.nn.functional.binary_cross_entropy` and `torch.nn.KLDivLoss` (input, then target).
    """
    question = profile.question
    if question is None or not question.swapped:
        return
    name = question.swapped
    yield Symptom(
        severity="info" if name == "kl_div" else "warning",
        where="the loss",
        message=f"argument 2 of {name}, the target, has a gradient and argument 1, the prediction, has none",
        action=f"Call `{name}(prediction, target)`.",
        evidence={"terms": float(question.terms)},
    )
