"""D909: the loss pushes outputs away from their targets."""

from __future__ import annotations

from collections.abc import Iterator

from leadline.checks._check import Symptom, check
from leadline.checks._wiring_examples import asked
from leadline.records import Profile

# Derived: a loss that rewards its targets has 1, a negated one 0; noise of the comparison is far from either.
MAX_SHARE_TOWARD_TARGET = 0.1


@check(
    code="D909",
    name="negated-loss",
    since="0.1.0",
    sick=asked(loss="cross_entropy", counted=64, toward_target=0.0),
    healthy=asked(loss="cross_entropy", counted=64, toward_target=1.0),
    explains=("U507",),
)
def negated_loss(profile: Profile) -> Iterator[Symptom]:
    r"""A step against the gradient moves predictions away from their targets.

    ## What it measures
    The gradient of the loss at the score of each target, or at each predicted number. A step against it must raise the
    score, or bring the number closer to its target. Two more things are read from the loss alone: the weight of each
    loss op in the whole loss, which must not be negative, and whether output vectors move away from given vectors
    however far they go.

    ## Why it hurts
    The optimizer minimizes what should be maximized. The loss falls without bound, and accuracy goes to zero.

    ## When it is wrong
    The adversarial part of a loss (a gradient reversal, the discriminator seen from the generator) moves away from the
    labels on purpose. A single subtracted term is therefore a warning.

    ## References
    PyTorch documentation, `torch.optim` (optimizers minimize; `maximize=True` inverts them).
    """
    question = profile.question
    if question is None:
        return
    share = question.toward_target
    if share is not None and share <= MAX_SHARE_TOWARD_TARGET:
        yield Symptom(
            severity="error",
            where="the loss",
            message=f"only {100 * share:.0f} % of the predictions move toward their target in a step against the "
            "gradient",
            action="Remove the minus sign before the loss (optimizers minimize), or set `maximize=True`.",
            evidence={"share_toward_target": share},
        )
    elif question.subtracted:
        yield Symptom(
            severity="warning",
            where="the loss",
            message=f"{question.subtracted[0]} has the wrong sign in the loss: a step against the gradient makes it "
            f"{'smaller' if question.subtracted[0] == 'cosine_similarity' else 'larger'}",
            action="Turn the sign of this term around (optimizers minimize).",
            evidence={"subtracted": float(len(question.subtracted)), "terms": float(question.terms)},
        )
