"""The fix shift-targets: each position is asked for the next input."""

from __future__ import annotations

from collections.abc import Iterator

from leadline.checks.model.shifted_targets import is_causal
from leadline.fixes._engine.fix import FixContext, Plan, fix
from leadline.records import Dependence, Edit


@fix(name="shift-targets", answers=("D907",), reach="architecture", since="0.1.0")
def shift_targets(context: FixContext) -> Iterator[Plan]:
    r"""Compares the output of each position with the input that follows it.

    ## What it does
    The loss asks each position for the input $k$ positions ahead, and $k$ is not 1. The output is moved by $k - 1$
    positions, or the labels are if the model computes its loss from them. With `--diff`, the call of the loss is
    rewritten instead: `logits[:, :-1]` against `targets[:, 1:]`, or both without a slice if they were shifted twice.

    ## Why it works
    A language model is trained to predict the next input. The loss means something else afterwards, so a lower loss
    than that of the untreated model proves nothing: copying its input is easier than predicting the next one. The proof
    is that the probe is silent and that the training falls below the loss of the best constant output.

    ## What it costs
    One position of each sequence has no answer: its output is zero, or its label is ignored.

    ## When it does not help
    In a network that also sees later positions, where the next input is visible too; and if a copy task, or a
    prediction several positions ahead, is what you want.

    ## References
    Radford et al., "Improving Language Understanding by Generative Pre-Training", 2018, equation 1.
    """
    question, dependence = context.profile.question, context.profile.dependence
    finding = next((each for each in context.findings(("D907",)) if each.severity != "info"), None)
    if finding is None or question is None or question.offset is None or dependence is None:
        return
    if int(finding.evidence["offset"]) <= 0 and not is_causal(context.profile):
        return
    steps, axis = int(finding.evidence["offset"]) - 1, question.offset.axis
    labels = _labels(dependence, question.offset.input)
    if labels is not None:
        edit = Edit(action="shift", options={"labels": labels, "steps": steps, "axis": axis})
    elif _returns_positions(context, axis, dependence.positions):
        edit = Edit(action="shift", options={"steps": steps, "axis": axis})
    else:
        return
    title = f"each position is asked for the next input, not for that {steps + 1} positions ahead"
    yield Plan(title=title, edits=(edit,), promise=1.0, changes_loss=True)


def _labels(dependence: Dependence, source: str) -> str | None:
    """The argument of the model that only its loss reads and that has the shape of the input; None if there is none."""
    shape = next((each.shape for each in dependence.inputs if each.name == source), None)
    hidden = [
        each.name for each in dependence.inputs if each.used and not each.visible and each.shape == shape
    ]
    return hidden[0] if len(hidden) == 1 and hidden[0].isidentifier() else None


def _returns_positions(context: FixContext, axis: int, positions: int | None) -> bool:
    """Whether the model returns one tensor with class scores for each position."""
    root = next((each for each in context.trace.modules if not each.path), None)
    returned = () if root is None else root.returned
    if len(returned) != 1 or returned[0] is None:
        return False
    shape = context.trace.values[returned[0]].shape
    return len(shape) == 3 and shape[axis] == positions
