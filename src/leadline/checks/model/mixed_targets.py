"""D908: the target of one sample changes the gradient of another."""

from __future__ import annotations

from collections.abc import Iterator

from leadline.checks._check import Symptom, check
from leadline.checks._wiring_examples import asked
from leadline.records import Profile, Question

# Heuristic: the own share of a target may be small in a contrastive loss, where all samples count for all others.
MIN_FOREIGN_GRADIENT = 0.05


@check(
    code="D908",
    name="mixed-targets",
    since="0.1.0",
    sick=asked(loss="mse_loss", predictions=(8, 1), targets=(8,), foreign_gradient=1.0),
    healthy=asked(loss="mse_loss", predictions=(8, 1), targets=(8, 1), foreign_gradient=0.0),
)
def mixed_targets(profile: Profile) -> Iterator[Symptom]:
    r"""Outputs are compared with the targets of other samples.

    ## What it measures
    The outputs are held fixed and the target of one sample is changed. The gradient at the outputs of all other samples
    must not change. If the loss is computed by one op, the shapes that it was given are compared, too.

    ## Why it hurts
    An output of shape (N, 1) against targets of shape (N,) broadcasts to (N, N): every output is pulled toward the mean
    of all targets. The loss falls to the variance of the targets and stays there.

    ## When it is wrong
    Contrastive and ranking losses compare samples with each other on purpose. Without a difference of shapes it is
    therefore only a note.

    ## References
    PyTorch, the warning of `torch.nn.functional.mse_loss` about a target size that differs from the input size.
    """
    question = profile.question
    if question is None:
        return
    broadcast = _is_broadcast(question)
    foreign = question.foreign_gradient or 0.0
    if not broadcast and foreign < MIN_FOREIGN_GRADIENT:
        return
    shapes = f" {question.predictions} against {question.targets}" if question.targets is not None else ""
    yield Symptom(
        severity="error" if broadcast or _is_column(question) else "info",
        where="the loss",
        message=f"the loss compares each output with the targets of all samples: shapes{shapes} broadcast"
        if broadcast
        else f"changing one target changes the gradient of other samples by {foreign:.2g} of its own change",
        action="Give outputs and targets the same shape: `output.squeeze(-1)` or `targets.unsqueeze(-1)`.",
        evidence={"foreign_gradient": foreign},
    )


def _is_broadcast(question: Question) -> bool:
    """Whether an op that compares element by element got shapes of which neither holds the other."""
    shape, targets = question.predictions, question.targets
    return (
        question.classes is None
        and targets is not None
        and len(shape) != len(targets)
        and _differs(shape, targets)
    )


def _differs(shape: tuple[int, ...], targets: tuple[int, ...]) -> bool:
    return tuple(size for size in shape if size != 1) == tuple(size for size in targets if size != 1)


def _is_column(question: Question) -> bool:
    """Whether the outputs are one number per sample, kept in a column."""
    return question.classes is None and len(question.predictions) == 2 and question.predictions[1] == 1
