"""What the loss rewards: the targets it uses, its sign, what it expects, read from its gradient at the predictions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from leadline.case import Case
from leadline.readings.wiring.batch import BatchTensor
from leadline.readings.wiring.held_outputs import (
    foreign_gradient,
    has_shared_targets,
    meets_other_targets,
    unless_refused,
    whole_over_halves,
)
from leadline.readings.wiring.input_uses import predictions_read_inputs
from leadline.readings.wiring.offsets import UsedTargets, find_offset, find_offset_between
from leadline.readings.wiring.output_range import read_output_range
from leadline.readings.wiring.reduction import difference_scales, read_reduction
from leadline.readings.wiring.shapes import (
    ELEMENT_LOSSES,
    compares_directly,
    find_broadcast,
    scrambled_output,
)
from leadline.readings.wiring.signs import subtracted_terms, toward_targets, unbounded_output
from leadline.records import Trace
from leadline.records.wiring import Question, Reduction, Scores, TargetOffset
from leadline.tracer.inputs import named_tensors
from leadline.tracer.passes import ObservedLoss, Pass
from leadline.tracer.values import tensors_in

EXPECTED_SCORES: dict[str, Scores] = {
    "cross_entropy": "logits",
    "nll_loss": "log-probabilities",
    "ctc_loss": "log-probabilities",
    "kl_div": "log-probabilities",
}
"""Losses of class scores, and the scores that they expect."""
CLASS_LOSSES = frozenset(["cross_entropy", "nll_loss"])
"""Losses with one target class per prediction, whose scores are along the second axis, or the only one."""
SQUARED_LOSSES = frozenset(["mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss"])
"""Losses whose predictions have the scale of their targets."""

ASYMMETRIC_LOSSES = frozenset([*EXPECTED_SCORES, "binary_cross_entropy", "binary_cross_entropy_with_logits"])
"""Losses that give another number if predictions and targets are exchanged."""

# Derived: rounding of a sum over 100,000 float32 scores is below this.
MAX_NORMALIZATION_ERROR = 1e-3
# Derived: the gradient of a softmax cross entropy sums to zero over the classes, up to rounding.
MAX_GRADIENT_SUM = 1e-3
# Heuristic: an answer span has a head for its begin and one for its end; more calls of one loss op are a loop.
MAX_HEADS = 2


def read_question(
    case: Case, trace: Trace, base: Pass, inputs: Sequence[BatchTensor]
) -> tuple[Question, UsedTargets | None]:
    """What the loss of the pass rewards, and the targets that it uses. The graph of the pass is kept."""
    calls = _loss_calls(base)
    # The loss op with most predictions.
    call = max(calls, key=lambda each: each.predictions.numel(), default=None)
    predictions = call.predictions if call is not None else _main_output(base.output)
    if predictions is None or predictions.is_nested:
        return Question(), None
    gradient = _gradient(base.loss, predictions)
    if gradient is None:
        return Question(loss=call.name if call else ""), None
    axis = _class_axis(call, predictions, gradient, case.targets)
    scores = None if axis is None else _scores_in_output(base, predictions, gradient, axis)
    used = _used_targets(call, scores)
    offset = None if used is None else find_offset(used, inputs)
    if offset is None and axis is None:
        offset = find_offset_between(inputs)
    # What needs the graph of the pass comes first: a loss with a memory may write to it when it is called again.
    read = {
        "broadcast": find_broadcast(trace),
        "compares_directly": compares_directly(trace),
        "unread_answers": tuple(_unread_answers(case, trace, base)),
        "reduction": _reduction(call, scores, offset),
        "scrambled": None if call is None or axis is None else scrambled_output(base, predictions, axis),
        "output_range": read_output_range(case, trace, base),
        "subtracted": subtracted_terms(base),
        "terms": len(calls),
        "swapped": next(_swapped_calls(base), ""),
        "reads_inputs": predictions_read_inputs(trace),
        **_answer_fields(case, call, axis, _gradients_of_calls(base, calls, call, gradient, axis)),
        **_score_fields(calls, predictions, axis),
        **(_regression_fields(calls) or difference_scales(trace)),
    }
    question = Question(
        loss=call.name if call is not None else "",
        predictions=tuple(predictions.shape),
        targets=tuple(call.targets.shape) if call is not None and call.targets is not None else None,
        offset=offset,
        toward_target=_toward_target(case, base, call, predictions, gradient, axis),
        whole_over_halves=unless_refused(whole_over_halves, case, base),
        foreign_gradient=unless_refused(foreign_gradient, case, base),
        has_shared_targets=bool(unless_refused(has_shared_targets, case, base)),
        has_permuted_targets=bool(unless_refused(meets_other_targets, case, base)),
        unbounded_output=unless_refused(unbounded_output, case, base),
        **read,
    )
    return question, used


def _loss_calls(base: Pass) -> list[ObservedLoss]:
    """The loss ops that the loss depends on."""
    calls = [call for call in base.loss_calls if call.predictions.requires_grad]
    return [call for call in calls if _gradient(base.loss, call.predictions) is not None]


def _swapped_calls(base: Pass) -> Iterator[str]:
    """Names of losses whose target learns while their prediction is given, unless they are symmetric in both."""
    for call in base.loss_calls:
        if call.name not in ASYMMETRIC_LOSSES or call.targets is None or call.predictions.requires_grad:
            continue
        if call.targets.requires_grad and _gradient(base.loss, call.targets) is not None:
            yield call.name


def _main_output(output: Any) -> Tensor | None:
    tensors = [each for each in tensors_in(output) if each.is_floating_point() and each.numel() > 1]
    return max((each for each in tensors if each.requires_grad), key=Tensor.numel, default=None)


def _gradient(loss: Tensor, at: Tensor) -> Tensor | None:
    if not loss.requires_grad or not at.requires_grad:
        return None
    return torch.autograd.grad(loss, at, retain_graph=True, allow_unused=True)[0]


def _class_axis(call: ObservedLoss | None, predictions: Tensor, gradient: Tensor, targets: Any) -> int | None:
    """The axis of the class scores; None if the predictions are no class scores.

    For a loss of several ops, it is an axis along which the gradient sums to zero, as that of a softmax does: the last
    one, or the second if there is a class for each index along the others.
    """
    if call is not None:
        return min(1, predictions.dim() - 1) if call.name in CLASS_LOSSES else None
    if _sums_to_zero(gradient, -1):
        return predictions.dim() - 1
    is_second = (
        isinstance(targets, Tensor)
        and not targets.is_floating_point()
        and predictions.dim() > 2
        and targets.shape == (*predictions.shape[:1], *predictions.shape[2:])
    )
    return 1 if is_second and _sums_to_zero(gradient, 1) else None


def _sums_to_zero(gradient: Tensor, axis: int) -> bool:
    total, size = gradient.sum(axis).abs().sum(), gradient.abs().sum()
    return gradient.size(axis) > 2 and bool(size > 0) and bool(total <= MAX_GRADIENT_SUM * size)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scores:
    """Class scores in the layout of the model's output, and the gradient of the loss at them."""

    values: Tensor
    gradient: Tensor
    axis: int
    """The axis of the classes."""


def _scores_in_output(base: Pass, predictions: Tensor, gradient: Tensor, axis: int) -> _Scores:
    at_output = _same_scores(base, predictions, axis)
    if at_output is not None:
        output, output_axis = at_output
        output_gradient = gradient if output is predictions else _gradient(base.loss, output)
        if output_gradient is not None:
            return _Scores(values=output, gradient=output_gradient, axis=output_axis)
    return _Scores(values=predictions, gradient=gradient, axis=axis)


def _used_targets(call: ObservedLoss | None, scores: _Scores | None) -> UsedTargets | None:
    """The class with the most negative gradient is the target that the loss used, wherever it got it from."""
    if scores is None:
        if call is None or call.targets is None:
            return None
        return UsedTargets(values=call.targets, counted=torch.ones_like(call.targets, dtype=torch.bool))
    return UsedTargets(
        values=scores.gradient.argmin(scores.axis), counted=scores.gradient.abs().amax(scores.axis) > 0
    )


def _reduction(
    call: ObservedLoss | None, scores: _Scores | None, offset: TargetOffset | None
) -> Reduction | None:
    if call is None or scores is None:
        return None
    sample_axis = 0 if offset is None else 1 - offset.axis
    return read_reduction(scores.values, scores.gradient, scores.axis, sample_axis)


def _same_scores(base: Pass, predictions: Tensor, axis: int) -> tuple[Tensor, int] | None:
    """The model's own output that holds the same scores before they were flattened, with its class axis.

    It keeps samples and positions apart.
    """
    classes = predictions.size(axis)
    for output in tensors_in(base.output):
        if output.is_floating_point() and output.requires_grad and output.dim() >= predictions.dim():
            if output.size(-1) == classes:
                return output, output.dim() - 1
            if output.dim() > 2 and output.size(1) == classes:
                return output, 1
    return None


def _answer_fields(
    case: Case, call: ObservedLoss | None, axis: int | None, gradients: Sequence[Tensor]
) -> dict[str, Any]:
    """How many predictions have a target, and how often the most frequent target occurs."""
    if axis is None:
        return _constant_fields(case, call) or _constant_classes(case, call)
    if call is None and not tensors_in(case.targets):
        return {}  # a handwritten loss that was given no targets ranks columns: the right one is always the same
    counted = torch.cat([(each.abs().amax(axis) > 0).flatten() for each in gradients])
    targets = torch.cat([each.argmin(axis).flatten() for each in gradients])[counted]
    fields: dict[str, Any] = {"counted": int(counted.sum()), "ignored": int((~counted).sum())}
    if targets.numel():
        frequency = targets.bincount()
        fields |= {
            "top_share": float(frequency.max() / targets.numel()),
            "distinct": int((frequency > 0).sum()),
        }
    return fields


def _gradients_of_calls(
    base: Pass, calls: Sequence[ObservedLoss], call: ObservedLoss | None, gradient: Tensor, axis: int | None
) -> list[Tensor]:
    """The gradient, or those of all calls of the same loss op if it is called sample by sample.

    Up to `MAX_HEADS` calls may be heads with a question each, of which the largest is looked at.
    """
    if call is None or axis is None:
        return [gradient]
    classes = call.predictions.size(axis)
    alike = [
        each
        for each in calls
        if each.name == call.name and each.predictions.dim() > axis and each.predictions.size(axis) == classes
    ]
    if len(alike) <= MAX_HEADS:
        return [gradient]
    gradients = [_gradient(base.loss, each.predictions) for each in alike]
    return [each for each in gradients if each is not None]


def _constant_fields(case: Case, call: ObservedLoss | None) -> dict[str, Any]:
    """For a loss of numbers: whether all targets of the batch are one number. Targets that the loss makes are not."""
    targets = case.targets if call is None else call.targets
    if not isinstance(targets, Tensor) or not targets.is_floating_point() or not targets.numel():
        return {}
    if call is not None and call.name not in ELEMENT_LOSSES:
        return {}
    given = [each for each in tensors_in(case.targets) if each.numel() == targets.numel()]
    if not any(bool((each == each.flatten()[0]).all()) for each in given):
        return {}
    return {"counted": targets.numel(), "ignored": 0, "top_share": 1.0, "distinct": 1}


def _constant_classes(case: Case, call: ObservedLoss | None) -> dict[str, Any]:
    """For a loss by hand, such as one of triplets: whether its only targets are one class for all samples."""
    targets = case.targets
    if (
        call is not None
        or not isinstance(targets, Tensor)
        or targets.is_floating_point()
        or targets.dim() != 1
    ):
        return {}
    if not len(targets) or bool((targets != targets[0]).any()):
        return {}
    return {"counted": len(targets), "ignored": 0, "top_share": 1.0, "distinct": 1, "classes": 1}


def _score_fields(calls: Sequence[ObservedLoss], predictions: Tensor, axis: int | None) -> dict[str, Any]:
    """What the class scores are and what the loss op expects; of several losses, one that gets something else."""
    axes = {
        call: score_axis
        for call in calls
        if call.name in EXPECTED_SCORES and (score_axis := _score_axis(call)) is not None
    }
    scores = {call: scores_of(call.predictions, score_axis) for call, score_axis in axes.items()}
    odd = (call for call in axes if _is_refused(call, scores[call]))
    main = (call for call in axes if call.predictions is predictions)
    call = next(odd, None) or next(main, None)
    if call is not None:
        return {
            "classes": call.predictions.size(axes[call]),
            "scores": scores[call],
            "expects": EXPECTED_SCORES[call.name],
            "scores_loss": call.name,
        }
    if axis is None:
        return {}
    return {"classes": predictions.size(axis), "scores": scores_of(predictions, axis)}


def _score_axis(call: ObservedLoss) -> int | None:
    """The axis of the class scores that a loss op reads; for a divergence, that of the distributions it is given."""
    dimensions = call.predictions.dim()
    if call.name == "kl_div":
        given = _given_distributions(call)
        if given is None or given.shape != call.predictions.shape:
            return None
        return next((axis for axis in reversed(range(dimensions)) if _is_one(given.sum(axis))), None)
    return min(1, dimensions - 1) if call.name in CLASS_LOSSES else dimensions - 1


def _given_distributions(call: ObservedLoss) -> Tensor | None:
    """The target distributions of a divergence, which may be given by their logarithms."""
    if call.targets is None:
        return None
    targets = call.targets.detach().double()
    log_target = call.kwargs.get("log_target", call.args[5] if len(call.args) > 5 else False)
    return targets.exp() if log_target else targets


def _is_refused(call: ObservedLoss, scores: Scores) -> bool:
    """Whether the loss op must not get these scores. Log-probabilities are logits, too."""
    expected = EXPECTED_SCORES[call.name]
    return scores != expected and not (expected == "logits" and scores == "log-probabilities")


def scores_of(scores: Tensor, axis: int) -> Scores:
    """What class scores are, by their values alone."""
    scores = scores.detach().double()
    if bool((scores >= 0).all()) and _is_one(scores.sum(axis)):
        return "probabilities"
    return "log-probabilities" if _is_one(scores.exp().sum(axis)) else "logits"


def _is_one(sums: Tensor) -> bool:
    return bool(((sums - 1).abs() <= MAX_NORMALIZATION_ERROR).all())


def _regression_fields(calls: Sequence[ObservedLoss]) -> dict[str, Any]:
    """The scales of outputs and targets; of several losses, those with the largest ratio."""
    scales = [
        (
            float(call.predictions.detach().double().square().mean().sqrt()),
            float(call.targets.detach().double().square().mean().sqrt()),
            float(call.targets.detach().double().std(correction=0)),
        )
        for call in calls
        if call.name in SQUARED_LOSSES and call.targets is not None
    ]
    if not scales:
        return {}
    output, target, spread = max(scales, key=lambda each: each[1] / max(each[0], 1.0))
    return {"output_scale": output, "target_scale": target, "target_spread": spread}


def _toward_target(
    case: Case,
    base: Pass,
    call: ObservedLoss | None,
    predictions: Tensor,
    gradient: Tensor,
    axis: int | None,
) -> float | None:
    """Share of the predictions that a step against the gradient brings closer to their target."""
    share = _share_toward_target(call, predictions, gradient, axis, case.targets)
    if call is not None and len(tensors_in(case.targets)) < 2:
        return share
    pull = toward_targets(case, base) if call is not None or share is None else None
    return share if pull is None else pull


def _share_toward_target(
    call: ObservedLoss | None, predictions: Tensor, gradient: Tensor, axis: int | None, given: Any
) -> float | None:
    """Share of the counted predictions whose distance to their target shrinks in a step against the gradient."""
    targets = call.targets if call is not None else given
    if not isinstance(targets, Tensor):
        return None
    given_distributions = _given_distributions(call) if call is not None and call.name == "kl_div" else None
    if given_distributions is not None:
        likely = torch.gt(given_distributions, 0).expand_as(gradient) & (gradient != 0)
        return float((gradient < 0)[likely].double().mean()) if bool(likely.any()) else None
    if axis is not None:
        return _share_of_raised_targets(gradient, axis, targets)
    if call is None and _are_chosen(gradient, targets):
        return _share_of_raised_targets(gradient, gradient.dim() - 1, targets)
    if targets.shape != predictions.shape or call is None or call.name not in ELEMENT_LOSSES:
        return None
    scores = predictions.detach().sigmoid() if call.name.endswith("with_logits") else predictions.detach()
    counted = (gradient != 0) & (scores != targets)
    toward = ((scores - targets) * gradient) > 0
    return float(toward[counted].double().mean()) if bool(counted.any()) else None


def _are_chosen(gradient: Tensor, targets: Tensor) -> bool:
    """Whether a handwritten loss reads, of each row of scores, that of its class and nothing else."""
    is_fitting = not targets.is_floating_point() and targets.shape == gradient.shape[:-1]
    if (
        not is_fitting
        or not targets.numel()
        or int(targets.max()) >= gradient.size(-1)
        or int(targets.min()) < 0
    ):
        return False
    chosen = torch.zeros_like(gradient, dtype=torch.bool).scatter(-1, targets.unsqueeze(-1), value=True)
    return bool((gradient[~chosen] == 0).all()) and bool((gradient != 0).any())


def _share_of_raised_targets(gradient: Tensor, axis: int, targets: Tensor) -> float | None:
    rows = gradient.movedim(axis, -1).reshape(-1, gradient.size(axis))
    classes = targets.reshape(-1)
    if targets.is_floating_point() or len(classes) != len(rows):
        return None
    counted = (rows.abs().amax(-1) > 0) & (classes >= 0) & (classes < rows.size(1))
    if not bool(counted.any()):
        return None
    at_target = rows[counted].gather(1, classes[counted].unsqueeze(1))
    return float((at_target < 0).double().mean())


def _unread_answers(case: Case, trace: Trace, base: Pass) -> Iterator[tuple[int, ...]]:
    """Shapes of targets that nothing reads while the model has an output of that shape, which nothing reads either."""
    read = {value for op in trace.ops for value in op.inputs}
    known = {value.name for value in trace.values if value.source == "target" and value.id in read}
    unread = [each.shape for name, each in named_tensors(case.targets, "target") if name not in known]
    if not unread or case.loss is None:
        return
    for output in tensors_in(base.output):
        if output.shape in unread and output.requires_grad and _gradient(base.loss, output) is None:
            yield tuple(output.shape)
