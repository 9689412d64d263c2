"""D910: a loss of log-probabilities gets something else."""

from __future__ import annotations

from collections.abc import Iterator

from leadline.checks._check import Symptom, check
from leadline.checks._wiring_examples import asked
from leadline.records import Profile


@check(
    code="D910",
    name="unnormalized-scores",
    since="0.1.0",
    sick=asked(loss="nll_loss", classes=10, scores="logits", expects="log-probabilities"),
    healthy=asked(loss="nll_loss", classes=10, scores="log-probabilities", expects="log-probabilities"),
)
def unnormalized_scores(profile: Profile) -> Iterator[Symptom]:
    r"""`nll_loss` gets logits or probabilities instead of log-probabilities.

    ## What it measures
    Whether the exponentials of the class scores sum to 1 (log-probabilities), or the scores themselves do.

    ## Why it hurts
    `nll_loss` only picks the score of the target and changes its sign. Without a normalization nothing holds the other
    classes down: on logits the loss falls without bound by making all scores large, on probabilities it stops at -1
    with a gradient that does not care how wrong a prediction is.

    ## When it is wrong
    Scores of a policy gradient may be weighted log-probabilities; then they are not passed to `nll_loss` directly.

    ## References
    PyTorch documentation, `torch.nn.NLLLoss` (the input has to contain log-probabilities).
    """
    question = profile.question
    if question is None or question.expects != "log-probabilities" or question.scores == "log-probabilities":
        return
    yield Symptom(
        severity="error",
        where="the loss",
        message=f"{question.loss} expects log-probabilities of {question.classes} classes but gets {question.scores}",
        action="Use `F.cross_entropy` on the logits, or apply `log_softmax` before `nll_loss`.",
        evidence={"classes": float(question.classes or 0)},
    )
