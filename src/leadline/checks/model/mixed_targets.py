"""D908: the target of one sample changes the gradient of another."""

from __future__ import annotations

import math
from collections.abc import Iterator

from leadline.checks._check import Symptom, check, in_op
from leadline.checks._wiring_examples import asked
from leadline.records import Dependence, MovedAxis, Profile, Question

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
    classes are along axis 1 takes scores of several positions for one prediction. Finally, targets of three samples are
    changed one at a time, also those that a teacher computes: an effect on exactly one sample, which is another one, is
    a different order.

    ## Why it hurts
    An output of shape (N, 1) against targets of shape (N,) broadcasts to (N, N): every output is pulled toward the mean
    of all targets. The loss falls to the variance of the targets and stays there. Scores that a view has torn apart are
    compared with targets of other positions.

    ## When it is wrong
    Contrastive, ranking and survival losses compare samples with each other on purpose. Without a difference of shapes
    it is a note, and a warning if a target changes the gradient of every sample alike, as a mean of errors that is
    squared afterward does; matching the mean of a batch does it on purpose. It is an error if a column of outputs gets
    the same change of its gradient at every sample, as a table of N by N gives it (more than `MIN_TABLE_GRADIENT` = 0.5
    of the sample's own change), or if a loss op reads outputs and targets as they are: then each output has one target,
    and it belongs to another sample.

    ## References
    PyTorch, the warning of `torch.nn.functional.mse_loss` about a target size that differs from the input size.
    """
    question = profile.question
    if question is None:
        return
    compared = [each for each in (profile.parts.moved_axes if profile.parts else ()) if each.is_compared]
    if question.scrambled is not None:
        yield _scrambled(question, question.scrambled)
    elif compared:
        yield _scrambled_view(compared[0])
    broadcast = question.broadcast
    shapes = None
    if broadcast is not None:
        shapes = f"{broadcast.outputs} against {broadcast.targets}"
    elif _is_broadcast(question) or _is_table(question, profile.dependence):
        shapes = f"{question.predictions} against {question.targets}"
    foreign = question.foreign_gradient or 0.0
    if shapes is None and question.has_permuted_targets and not _mixes_samples(profile):
        yield _permuted(foreign)
        return
    if shapes is None and foreign < MIN_FOREIGN_GRADIENT:
        return
    is_table = (_is_column(question) or question.compares_directly) and foreign > MIN_TABLE_GRADIENT
    yield Symptom(
        severity="error"
        if shapes is not None or is_table
        else "warning"
        if question.has_shared_targets
        else "info",
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


def _permuted(foreign: float) -> Symptom:
    return Symptom(
        severity="error",
        where="the loss",
        message="the target of each sample changes the gradient of one other sample, and not that of its own",
        action="Bring outputs and targets into the same order: look for a `roll`, a `flip`, a shuffle or an index that "
        "only one of them gets.",
        evidence={"foreign_gradient": foreign},
    )


def _mixes_samples(profile: Profile) -> bool:
    """Whether rows of the outputs depend on each other, as those of one sequence do: then a shift may be meant."""
    probe = profile.dependence.of("sample") if profile.dependence else None
    return probe is not None and bool(probe.forbidden)


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


def _scrambled_view(view: MovedAxis) -> Symptom:
    return Symptom(
        severity="error",
        where="the loss",
        message=f"targets meet elements of other positions: a view from {view.before} to {view.after} puts the axis of "
        f"length {view.axis} into another place and leaves the elements where they are{in_op(view.site)}",
        action="Move axes by `transpose` or `permute`; a `view` does not move elements.",
        source=view.site.source,
        evidence={"axis": float(view.axis)},
    )


def _is_broadcast(question: Question) -> bool:
    """Whether an op that compares element by element got shapes of which neither holds the other."""
    shape, targets = question.predictions, question.targets
    if _asks_for_classes(question) or targets is None or len(shape) == len(targets):
        return False
    if math.prod(shape) < math.prod(
        targets
    ):  # each prediction meets several targets, such as (N,) against (N, N)
        return True
    return tuple(size for size in shape if size != 1) == tuple(size for size in targets if size != 1)


def _is_table(question: Question, dependence: Dependence | None) -> bool:
    """Whether the loss op got a row and a column for each sample, and one target for each, as `scores[:, actions]` has.

    Targets of shape (N,) then belong to the columns.
    """
    samples = dependence.samples if dependence else None
    is_square = question.predictions == (samples, samples) and question.targets == (samples,)
    return is_square and not _asks_for_classes(question)


def _is_column(question: Question) -> bool:
    """Whether the outputs are one number per sample, kept in a column."""
    shape = question.predictions
    return not _asks_for_classes(question) and len(shape) == 2 and shape[1] == 1


def _asks_for_classes(question: Question) -> bool:
    """Whether the predictions are class scores; another part of the loss may read some, too."""
    return question.classes is not None and question.scores_loss in ("", question.loss)
