"""D911: nearly all targets are the same, or none counts."""

from __future__ import annotations

from collections.abc import Iterator

from leadline.checks._check import Symptom, check
from leadline.checks._wiring_examples import asked
from leadline.records import Profile, Question
from leadline.records.wiring import MIN_TELLING_ELEMENTS

# Heuristic: a network that always gives this answer is right so often that the rest hardly counts.
MIN_TOP_SHARE = 0.95
# Derived: with fewer targets, a share above MIN_TOP_SHARE and below 1 is impossible, and one class may be chance.
MIN_COUNTED = 16
# Derived: eight targets out of as many classes are the same once in two million batches, if classes are about as
# frequent; then `MIN_TELLING_ELEMENTS` targets are enough.
MIN_CLASSES = 8


@check(
    code="D911",
    name="single-answer",
    since="0.1.0",
    sick=asked(classes=10, counted=64, ignored=0, top_share=1.0, distinct=1),
    healthy=asked(classes=10, counted=64, ignored=0, top_share=0.2, distinct=10),
)
def single_answer(profile: Profile) -> Iterator[Symptom]:
    r"""One class is nearly the only target of the batch, or the loss ignores all targets.

    ## What it measures
    The targets that the loss uses, read from its gradient: the share of the most frequent one, and how many
    predictions have a gradient at all. For a loss of numbers (binary cross entropy, regression) it counts only if all
    targets of the batch are one number, and it is a note: a generator is asked for ones only.

    ## Why it hurts
    A network that always gives the same answer is then nearly perfect, and that is what it learns. Padding that is not
    ignored, a wrong label column, or data that is sorted by class looks like this.

    ## When it is wrong
    Rare events (fraud, anomalies) are rare; weight their class or sample more of them.

    ## References
    PyTorch documentation, `torch.nn.CrossEntropyLoss` (`ignore_index`, `weight`).
    """
    question = profile.question
    if question is None or question.counted is None:
        return
    if question.counted == 0 and question.ignored:
        yield Symptom(
            severity="error",
            where="the loss",
            message=f"the loss ignores all {question.ignored} targets of the batch: no prediction has a gradient",
            action="Check `ignore_index` and how the labels are made: every label is ignored.",
            evidence={"ignored": float(question.ignored)},
        )
    elif (
        question.top_share is not None
        and question.counted >= (MIN_COUNTED if _may_be_chance(question) else MIN_TELLING_ELEMENTS)
        and question.top_share >= MIN_TOP_SHARE
    ):
        yield Symptom(
            severity="warning" if question.classes is not None else "info",
            where="the loss",
            message=f"{100 * question.top_share:.0f} % of the {question.counted} targets are the same",
            action="Pass `ignore_index` for padding, check the label column, and shuffle the data.",
            evidence={"top_share": question.top_share, "distinct": float(question.distinct or 0)},
        )


def _may_be_chance(question: Question) -> bool:
    """Whether a few targets out of these classes may be the same without a reason."""
    return question.top_share != 1.0 or (question.classes or 0) < MIN_CLASSES
