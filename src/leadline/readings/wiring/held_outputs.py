"""The loss as a function of outputs and targets: the outputs of a pass are held fixed while something else changes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from leadline.case import Case
from leadline.readings.wiring.batch import replace_tensors
from leadline.tracer.inputs import find_loss
from leadline.tracer.passes import Pass
from leadline.tracer.values import tensors_in

# Heuristic: a target that changes other samples and not its own has a ratio without bound; this is far above any other.
MAX_FOREIGN = 1000.0
# Heuristic: rounding of a mean over the samples stays far below this.
MAX_MOVE_SPREAD = 1e-3
# Heuristic: fewer samples may be in another order by chance.
MIN_ORDERED = 4


T = TypeVar("T")


def unless_refused(measure: Callable[[Case, Pass], T | None], case: Case, base: Pass) -> T | None:
    """The measurement; None if the loss refuses other targets or half of the batch.

    A loss may also read tensors of its own, which stay as they are. What else the pass says remains true.
    """
    try:
        return measure(case, base)
    except Exception:  # the user's loss may raise anything for targets that it never sees in training
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldLoss:
    """The loss of outputs that are held fixed."""

    loss: float
    outputs: list[Tensor]
    """Each output of floating-point numbers."""
    gradients: list[Tensor]
    """The gradient of the loss at each of them."""


def hold_outputs(
    case: Case, output: Any, targets: Any, steps: Mapping[int, Tensor] = MappingProxyType({})
) -> HeldLoss:
    """The loss of the outputs, held fixed and moved by `steps`, which are given by their place."""
    leaves: list[Tensor] = []

    def hold(item: Any) -> Any:
        if not isinstance(item, Tensor) or not item.is_floating_point():
            return item
        leaves.append((item.detach() + steps.get(len(leaves), 0.0)).requires_grad_())
        return leaves[-1]

    loss = find_loss(tree_map(hold, output), case.loss, targets)
    gradients = torch.autograd.grad(loss, leaves, allow_unused=True)
    pairs = zip(leaves, gradients, strict=True)
    return HeldLoss(
        loss=float(loss.detach()),
        outputs=leaves,
        gradients=[torch.zeros_like(leaf) if grad is None else grad for leaf, grad in pairs],
    )


def foreign_gradient(case: Case, base: Pass) -> float | None:
    """How much the gradient at other samples changes if the target of one sample does, relative to its own change."""
    targets = case.targets
    if not isinstance(targets, Tensor) or targets.dim() == 0 or len(targets) < 2:
        return None
    sample = len(targets) // 2
    changes = _changes_of_gradient(case, base, targets, sample)
    ratios = [
        ratio
        for change in changes
        for axis in _sample_axes(change, len(targets))
        if (ratio := _foreign_share(change, axis, sample)) is not None
    ]
    return min(ratios, default=None)


def _changes_of_gradient(case: Case, base: Pass, target: Tensor, sample: int) -> list[Tensor]:
    """How the gradient at each output changes if one sample gets the target of another that differs; [] if none does.

    The target is one of the batch, or an output that was computed without a graph, such as that of a teacher.
    """
    others = (
        index for index in reversed(range(len(target))) if not torch.equal(target[index], target[sample])
    )
    other = next(others, None)
    if other is None or case.loss is None:
        return []
    changed = target.detach().clone()
    changed[sample] = target[other]
    outputs = [each for each in tensors_in(base.output) if each.is_floating_point()]
    place = next((index for index, each in enumerate(outputs) if each is target), None)
    before = hold_outputs(case, base.output, case.targets).gradients
    if place is None:
        targets = replace_tensors(case.targets, {id(target): changed})
        after = hold_outputs(case, base.output, targets).gradients
    else:
        after = hold_outputs(case, base.output, case.targets, {place: changed - target}).gradients
    pairs = enumerate(zip(before, after, strict=True))
    return [two - one for index, (one, two) in pairs if index != place and outputs[index].requires_grad]


def has_shared_targets(case: Case, base: Pass) -> bool | None:
    """Whether a target changes the gradient of every sample alike, although each output has a target of its own.

    A mean of the errors before they are squared does that, and a table of all outputs and all targets.
    """
    target = case.targets
    if not isinstance(target, Tensor) or not target.is_floating_point() or target.dim() == 0:
        return None
    for change in _changes_of_gradient(case, base, target, len(target) // 2):
        if change.numel() % target.numel() == 0 and len(change) == len(target) > MIN_ORDERED:
            moves = change.reshape(len(change), -1).abs().amax(1)
            if bool(moves.max() > 0) and bool(moves.max() - moves.min() <= MAX_MOVE_SPREAD * moves.max()):
                return True
    return None


def meets_other_targets(case: Case, base: Pass) -> bool | None:
    """Whether some target has an effect on exactly one sample, and that is another one, wherever it is changed.

    A permutation does this. Labels that are mixed or compared on purpose have an effect on their own sample, too, and
    a shift along one sequence leaves its first target or its last one without an effect.
    """
    fixed = [each for each in tensors_in(base.output) if each.is_floating_point() and not each.requires_grad]
    for target in (*tensors_in(case.targets), *fixed):
        if target.dim() and len(target) > MIN_ORDERED and _is_permuted(case, base, target):
            return True
    return None


def _is_permuted(case: Case, base: Pass, target: Tensor) -> bool:
    for sample in (0, len(target) // 2, len(target) - 1):
        moves = [
            change.reshape(len(change), -1).abs().amax(1) > 0
            for change in _changes_of_gradient(case, base, target, sample)
            if change.dim() and len(change) == len(target)
        ]
        reached = torch.stack(moves).any(0).nonzero().flatten().tolist() if moves else []
        if len(reached) != 1 or reached == [sample]:
            return False
    return True


def _sample_axes(output: Tensor, samples: int) -> list[int]:
    """The axes that may count the samples: the first one, or any of three and more that is as long."""
    if output.dim() < 3:
        return [0] if output.dim() and len(output) == samples else []
    return [axis for axis, size in enumerate(output.shape) if size == samples]


def _foreign_share(change: Tensor, axis: int, sample: int) -> float | None:
    """The largest change at another sample over that at this one, at most `MAX_FOREIGN`; None if nothing changed."""
    move = change.movedim(axis, 0).reshape(change.size(axis), -1).abs().amax(1)
    own, foreign = float(move[sample]), float(move[torch.arange(len(move)) != sample].max())
    largest = max(own, foreign)
    return foreign / max(own, largest / MAX_FOREIGN) if largest > 0 else None


def whole_over_halves(case: Case, base: Pass) -> float | None:
    """The loss of the batch over the mean of the losses of its halves; None if outputs or targets cannot be split."""
    given = [each for each in tensors_in(case.targets) if each.dim()]
    size = len(given[0]) if given else 0
    tensors = [each for each in (*tensors_in(base.output), *given) if each.dim()]
    if case.loss is None or size < 2 or size % 2 or any(len(each) != size for each in tensors):
        return None

    def half(tree: Any, part: slice) -> Any:
        return tree_map(
            lambda item: item.detach()[part] if isinstance(item, Tensor) and item.dim() else item, tree
        )

    parts = (slice(size // 2), slice(size // 2, None))
    losses = [
        float(find_loss(half(base.output, part), case.loss, half(case.targets, part))) for part in parts
    ]
    mean = sum(losses) / 2
    return float(base.loss.detach()) / mean if mean else None
