"""The fix scaled-targets: the network predicts numbers of unit size."""

from __future__ import annotations

import math
from collections.abc import Iterator

from leadline.fixes._engine.fix import FixContext, Plan, fix
from leadline.records import Edit

# Heuristic: within this factor, mean and deviation of the targets are as good as 0 and 1.
MIN_TARGET_CHANGE = 3.0


@fix(name="scaled-targets", answers=("D913", "U5"), reach="init", since="0.2.0")
def scaled_targets(context: FixContext) -> Iterator[Plan]:
    r"""Multiplies the outputs by the standard deviation of the targets and adds their mean.

    ## What it does
    A forward hook on the model maps its output $y$ to $s y + m$, where $m$ and $s$ are measured on the targets of the
    batch and then fixed. The loss keeps its unit, so it can be compared before and after. Training on
    $(t - m)/s$ instead has the same effect on the outputs, and so have other initial values of the last layer.

    ## Why it works
    Outputs start near 0 with size 1. If targets are near 500, Adam at a rate of 0.001 needs hundreds of thousands of
    steps to move a bias there, and the errors that matter are invisible beside this one.

    ## What it costs
    One multiplication of the output. With plain gradient descent the gradient grows by $s$: normalize the loss too.

    ## When it does not help
    If the columns of the targets have different units: normalize each in the data pipeline.

    ## References
    Bishop, "Neural Networks for Pattern Recognition", 1995, section 8.2.
    """
    import torch  # torch-free start: `leadline fixes` lists the fixes without it

    targets, question = context.case.targets, context.profile.question
    if question is None or question.target_scale is None:
        return
    if not isinstance(targets, torch.Tensor) or not targets.is_floating_point() or targets.numel() < 2:
        return
    mean, deviation = targets.float().mean().item(), targets.float().std().item()
    if not 0 < deviation < math.inf or not math.isfinite(mean):
        return
    is_far = abs(mean) > MIN_TARGET_CHANGE * deviation or not (
        1 / MIN_TARGET_CHANGE < deviation < MIN_TARGET_CHANGE
    )
    if is_far:
        factor, offset = float(f"{deviation:.4g}"), float(f"{mean:.4g}")
        edit = Edit(action="affine-output", options={"factor": factor, "offset": offset})
        yield Plan(title=f"outputs times {factor:g} plus {offset:g}", edits=(edit,), promise=0.9)
