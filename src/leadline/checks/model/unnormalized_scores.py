"""D910: a loss of class scores gets something else than it expects."""

from __future__ import annotations

from collections.abc import Iterator

from leadline.checks._check import Symptom, check
from leadline.checks._wiring_examples import asked
from leadline.records import Profile, Question


@check(
    code="D910",
    name="unnormalized-scores",
    since="0.1.0",
    sick=asked(loss="nll_loss", classes=10, scores="logits", expects="log-probabilities"),
    healthy=asked(loss="nll_loss", classes=10, scores="log-probabilities", expects="log-probabilities"),
)
def unnormalized_scores(profile: Profile) -> Iterator[Symptom]:
    r"""The class scores that a loss gets are not what it expects, such as logits in `nll_loss`.

    ## What it measures
    Whether the exponentials of the class scores sum to 1 (log-probabilities), or the scores themselves do. Every loss
    op that the loss depends on is asked. Probabilities in `cross_entropy` are left to `squashed-logits` where that
    check knows the op that made them.

    ## Why it hurts
    `nll_loss` only picks the score of the target and changes its sign. Without a normalization nothing holds the other
    classes down: on logits the loss falls without bound by making all scores large, on probabilities it stops at -1
    with a gradient that does not care how wrong a prediction is. `cross_entropy` applies its own softmax, so
    probabilities can never become a confident answer.

    ## When it is wrong
    Scores of a policy gradient may be weighted log-probabilities; then they are not passed to `nll_loss` directly.

    ## References
    PyTorch documentation, `torch.nn.NLLLoss` (the input has to contain log-probabilities).
    """
    question = profile.question
    if question is None or question.scores is None or question.scores in _accepted(question):
        return
    head = profile.facts.head if profile.facts else None
    if question.expects == "logits" and head is not None and head.behind:
        return
    loss = question.scores_loss or question.loss
    yield Symptom(
        severity="error",
        where="the loss",
        message=f"{loss} expects {question.expects} of {question.classes} classes but gets {question.scores}",
        action="Use `F.cross_entropy` on the logits, without a softmax before it."
        if loss in ("cross_entropy", "nll_loss")
        else f"Apply `log_softmax` over the classes before `{loss}`.",
        evidence={"classes": float(question.classes or 0)},
    )


def _accepted(question: Question) -> tuple[str, ...]:
    """The scores that the loss op can work with. Log-probabilities are logits, too."""
    if question.expects == "log-probabilities":
        return ("log-probabilities",)
    return ("logits", "log-probabilities") if question.expects == "logits" else (question.scores or "",)
