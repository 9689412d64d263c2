"""D913: regression targets are far larger than what a network starts with."""

from __future__ import annotations

from collections.abc import Iterator

from leadline.checks._check import Symptom, check
from leadline.checks._wiring_examples import asked
from leadline.records import Profile

# Heuristic: outputs start near 1; Adam at 1e-3 needs thousands of steps for a bias to reach 30.
MAX_TARGET_SCALE = 30.0


@check(
    code="D913",
    name="targets-out-of-scale",
    since="0.1.0",
    sick=asked(loss="mse_loss", output_scale=1.0, target_scale=500.0, target_spread=100.0),
    healthy=asked(loss="mse_loss", output_scale=1.0, target_scale=1.0, target_spread=1.0),
    explains=("I308", "U522", "U521", "U523", "U509"),
)
def targets_out_of_scale(profile: Profile) -> Iterator[Symptom]:
    r"""Regression targets are many times larger than the outputs.

    ## What it measures
    The root mean square of the targets over that of the outputs, for losses in which both have the same unit.

    ## Why it hurts
    The last layer first has to grow to the size of the targets. With plain gradient descent the gradient is as large as
    the targets and the steps diverge; with Adam every weight moves by about the learning rate, and learning takes as
    many steps as the targets are learning rates large.

    ## When it is wrong
    A network whose last layer multiplies by the scale of the targets has outputs of that size, and nothing is said.

    ## References
    Bishop, "Neural Networks for Pattern Recognition", 1995, section 8.2 (normalizing inputs and targets).
    """
    question = profile.question
    if question is None or question.target_scale is None or question.output_scale is None:
        return
    ratio = question.target_scale / max(question.output_scale, 1.0)
    if ratio <= MAX_TARGET_SCALE:
        return
    yield Symptom(
        severity="warning",
        where="the loss",
        message=f"the targets are {ratio:.3g} times larger than the outputs (spread {question.target_spread:.3g})",
        action="Train on `(targets - mean) / std` and undo it when predicting.",
        evidence={"target_over_output": ratio, "target_spread": question.target_spread or 0.0},
    )
