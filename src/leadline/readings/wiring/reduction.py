"""How a loss treats its targets: the weight of each class target, and the scale of numbers that it subtracts.

For a cross entropy, the gradient at the score of the target is $-w (1 - p)$, with $p$ the probability that the scores
give to the target and $w$ the weight of this prediction in the loss. At log-probabilities that `nll_loss` reads it is
$-w$, and zero at all other classes. So a pass that was made
for other reasons tells whether the loss is a mean over targets ($w = 1/n$), a sum ($w = 1$), or a mean of means.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from leadline.ops.table import LAYOUT_KINDS
from leadline.records import Trace
from leadline.records.wiring import Reduction

# Heuristic: a target that is nearly certain has a gradient of rounding errors, and its weight is not measured.
MIN_UNCERTAINTY = 1e-2
# Heuristic: rounding of one division in float32, and of a sum over a vocabulary, stays far below this.
MAX_SPREAD = 1e-2
# Heuristic: fewer targets say nothing about a reduction.
MIN_TARGETS = 8


def read_reduction(scores: Tensor, gradient: Tensor, axis: int, sample_axis: int) -> Reduction | None:
    """The reduction of a loss of class scores; None if it is neither a sum, nor a mean, nor a mean of means.

    A loss that weighs classes or samples, smooths labels or transforms the scores before it compares them is none.
    """
    scores, gradient = (each.detach().double().movedim(axis, -1) for each in (scores, gradient))
    counted = gradient.abs().amax(-1) > 0
    if counted.dim() <= sample_axis or int(counted.sum()) < MIN_TARGETS:
        return None
    weights, known = _weights(scores, gradient, counted)
    samples = counted.size(sample_axis)
    rows = [each.movedim(sample_axis, 0).reshape(samples, -1) for each in (weights, known, counted)]
    means, per_sample = _equal_rows(rows[0], rows[1]), rows[2].sum(1)
    if means is None:
        return None
    seen = means.isfinite()
    if not _is_even(means[seen]) and not _is_even((means * per_sample)[seen]):
        return None
    half = samples // 2
    return Reduction(
        targets=int(per_sample.sum()),
        total_weight=float((means * per_sample)[seen].sum()),
        halves=(int(per_sample[:half].sum()), int(per_sample[half : 2 * half].sum())),
        largest_over_smallest=float(means[seen].max() / means[seen].min()),
    )


def _weights(scores: Tensor, gradient: Tensor, counted: Tensor) -> tuple[Tensor, Tensor]:
    """The weight of each prediction, and where it is known."""
    at_target, target = gradient.min(-1)
    if int((gradient != 0).sum(-1).max()) == 1:
        return -at_target, counted
    probability = scores.softmax(-1).gather(-1, target.unsqueeze(-1)).squeeze(-1)
    return -at_target / (1 - probability), counted & (1 - probability > MIN_UNCERTAINTY)


def _equal_rows(weights: Tensor, known: Tensor) -> Tensor | None:
    """The weight in each row, NaN where it is not known; None if it differs within a row."""
    plain = torch.where(known, weights, torch.nan)
    means = plain.nanmean(1)
    spread = (plain - means.unsqueeze(1)).abs().nan_to_num().amax(1)
    seen = means.isfinite()
    if not bool(seen.any()) or bool((means[seen] <= 0).any()):
        return None
    return means if bool((spread[seen] <= MAX_SPREAD * means[seen]).all()) else None


def _is_even(numbers: Tensor) -> bool:
    return bool(numbers.max() - numbers.min() <= MAX_SPREAD * numbers.max())


def difference_scales(trace: Trace) -> dict[str, Any]:
    """The scales of an output and a target of which a handwritten loss takes the difference.

    Of several differences, such as those of several tasks, the one with the largest ratio counts.
    """
    outputs = {value for op in trace.ops if op.phase == "forward" for value in op.outputs}
    targets = {value.id for value in trace.values if value.source == "target"}
    scales: list[tuple[float, float, float]] = []
    for op in trace.ops:
        if op.phase != "loss":
            continue
        of_targets, of_outputs = targets & {*op.inputs}, (outputs & {*op.inputs}) - targets
        if op.name == "sub" and len(of_targets) == len(of_outputs) == 1:
            output, target = (trace.values[value].forward for (value,) in (of_outputs, of_targets))
            if output is not None and target is not None:
                spread = max(target.ms - target.mean**2, 0.0)
                scales.append((math.sqrt(output.ms), math.sqrt(target.ms), math.sqrt(spread)))
        elif of_targets and (op.kind in LAYOUT_KINDS or op.name == "getitem"):
            targets.update(op.outputs)
        elif of_outputs:
            outputs.update(op.outputs)
    if not scales:
        return {}
    output_scale, target_scale, target_spread = max(scales, key=lambda each: each[1] / max(each[0], 1.0))
    return {"output_scale": output_scale, "target_scale": target_scale, "target_spread": target_spread}
