"""The fix match-targets: the output gets the shape of the targets."""

from __future__ import annotations

from collections.abc import Iterator

from leadline.fixes._engine.fix import FixContext, Plan, fix
from leadline.fixes._engine.lookup import returns_shape
from leadline.records import Edit


@fix(name="match-targets", answers=("D908",), reach="architecture", since="0.1.0")
def match_targets(context: FixContext) -> Iterator[Plan]:
    r"""Removes or adds the last axis of the output, so that it is compared with its own targets only.

    ## What it does
    If the output has the shape (N, 1) and the targets (N,), the model returns `output.squeeze(-1)`; if it is the other
    way around, `output.unsqueeze(-1)`.

    ## Why it works
    Equal shapes do not broadcast to (N, N). The loss means something else afterwards, so a lower loss than that of the
    untreated model proves nothing. The proof is that the probe is silent and that the training falls below the loss of
    the best constant output, which a broadcast loss never does.

    ## What it costs
    The output has another shape: code that reads it must expect it. Changing the targets instead is as good.

    ## When it does not help
    If the outputs are to be compared with the targets of all samples, as in a contrastive loss.

    ## References
    PyTorch, "Broadcasting semantics".
    """
    question = context.profile.question
    if question is None or question.targets is None or not context.findings(("D908",)):
        return
    shape, targets = question.predictions, question.targets
    if not returns_shape(context, shape):
        return
    for kind, matches in (("squeeze", shape == (*targets, 1)), ("unsqueeze", targets == (*shape, 1))):
        if matches:
            edit = Edit(action="last-axis", options={"kind": kind})
            title = f"output.{kind}(-1), because the targets have the shape {targets}"
            yield Plan(title=title, edits=(edit,), promise=1.0, changes_loss=True)
