"""D908: the target of one sample changes the gradient of another."""

from __future__ import annotations

from collections.abc import Iterator

from leadline.checks._check import Symptom, check, in_op
from leadline.checks._wiring_examples import asked
from leadline.records import Profile, Question

# Heuristic: the own share of a target may be small in a contrastive loss, where all samples count for all others.
MIN_FOREIGN_GRADIENT = 0.05
# Derived: in a table of N by N, a target changes the gradient of every output alike: a share of 1, far above half.
MIN_TABLE_GRADIENT = 0.5


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
    must not change. The shapes that each op of the loss reads are compared, too: an output of shape (N, 1) and targets
    of shape (N,) make a table of N by N. So are the axes of class scores: `logits.view(-1, C)` of an output whose
    classes are along axis 1 takes scores of several positions for one prediction.

    ## Why it hurts
    An output of shape (N, 1) against targets of shape (N,) broadcasts to (N, N): every output is pulled toward the mean
    of all targets. The loss falls to the variance of the targets and stays there. Scores that a view has torn apart are
    compared with targets of other positions.

    ## When it is wrong
    Contrastive, ranking and survival losses compare samples with each other on purpose. Without a difference of shapes
    it is a note, unless a column of outputs gets the same change of its gradient at every sample, as a table of N by N
    gives it (more than `MIN_TABLE_GRADIENT` = 0.5 of the sample's own change), or unless a loss op reads outputs and
    targets as they are: then each output has one target, and it belongs to another sample.

    ## References
    PyTorch, the warning of `torch.nn.functional.mse_loss` about a target size that differs from the input size.
    """
    question = profile.question
    if question is None:
        return
    if question.scrambled is not None:
        yield _scrambled(question, question.scrambled)
    broadcast = question.broadcast
    shapes = None
    if broadcast is not None:
        shapes = f"{broadcast.outputs} against {broadcast.targets}"
    elif _is_broadcast(question):
        shapes = f"{question.predictions} against {question.targets}"
    foreign = question.foreign_gradient or 0.0
    if shapes is None and foreign < MIN_FOREIGN_GRADIENT:
        return
    is_table = (_is_column(question) or question.compares_directly) and foreign > MIN_TABLE_GRADIENT
    yield Symptom(
        severity="error" if shapes is not None or is_table else "info",
        where="the loss",
        message=f"the loss compares each output with the targets of all samples: shapes {shapes} broadcast"
        f"{in_op(broadcast.site if broadcast else None)}"
        if shapes is not None
        else f"changing one target changes the gradient of other samples by {foreign:.2g} of its own change",
        action="Bring outputs and targets into the same order by `transpose` or `permute`; a `view` does not move "
        "elements."
        if shapes is None and question.compares_directly
        else "Give outputs and targets the same shape: `output.squeeze(-1)` or `targets.unsqueeze(-1)`.",
        source=broadcast.site.source if broadcast else None,
        evidence={"foreign_gradient": foreign},
    )


def _scrambled(question: Question, output: tuple[int, ...]) -> Symptom:
    axis = output.index(question.classes or 0, 1)  # axis 0 counts samples
    return Symptom(
        severity="error",
        where="the loss",
        message=f"{question.loss} takes scores of several positions for one prediction: the output {output} was viewed "
        f"as {question.predictions}, but its {question.classes} classes are along axis {axis}",
        action=f"Use `output.movedim({axis}, -1).reshape(-1, {question.classes})`, or pass the output as it is.",
        evidence={"class_axis": float(axis)},
    )


def _is_broadcast(question: Question) -> bool:
    """Whether an op that compares element by element got shapes of which neither holds the other."""
    shape, targets = question.predictions, question.targets
    if _asks_for_classes(question) or targets is None or len(shape) == len(targets):
        return False
    return tuple(size for size in shape if size != 1) == tuple(size for size in targets if size != 1)


def _is_column(question: Question) -> bool:
    """Whether the outputs are one number per sample, kept in a column."""
    shape = question.predictions
    return not _asks_for_classes(question) and len(shape) == 2 and shape[1] == 1


def _asks_for_classes(question: Question) -> bool:
    """Whether the predictions are class scores; another part of the loss may read some, too."""
    return question.classes is not None and question.scores_loss in ("", question.loss)
