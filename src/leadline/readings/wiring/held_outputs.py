"""The loss as a function of outputs and targets: the outputs of a pass are held fixed while something else changes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from leadline.case import Case
from leadline.readings.wiring.batch import PERTURBATION_SEED
from leadline.tracer.inputs import find_loss
from leadline.tracer.passes import Pass

# Heuristic: a step of the outputs that is small against them and large against rounding.
RELATIVE_STEP = 0.1
# Heuristic: cosine between a rise of the targets and that of the gradient; 1 for a negated square, near 0 by chance.
MIN_PUSH = 0.3
# Heuristic: cosine between a step and the change of the gradient; -1 for a negated square, near 0 for a saddle.
MIN_CONCAVITY = 0.5


def unless_refused(measure: Callable[[Case, Pass], float | None], case: Case, base: Pass) -> float | None:
    """The measurement; None if the loss refuses other targets or half of the batch.

    A loss may also read tensors of its own, which stay as they are. What else the pass says remains true.
    """
    try:
        return measure(case, base)
    except Exception:  # the user's loss may raise anything for targets that it never sees in training
        return None


def _loss_gradient(
    case: Case, output: Any, targets: Any, steps: Mapping[int, Tensor] = MappingProxyType({})
) -> tuple[list[Tensor], list[Tensor]]:
    """The outputs, held fixed and moved by `steps`, and the gradient of their loss with respect to each of them."""
    leaves: list[Tensor] = []

    def hold(item: Any) -> Any:
        if not isinstance(item, Tensor) or not item.is_floating_point():
            return item
        leaves.append((item.detach() + steps.get(len(leaves), 0.0)).requires_grad_())
        return leaves[-1]

    loss = find_loss(tree_map(hold, output), case.loss, targets)
    gradients = torch.autograd.grad(loss, leaves, allow_unused=True)
    pairs = zip(leaves, gradients, strict=True)
    return leaves, [torch.zeros_like(leaf) if grad is None else grad for leaf, grad in pairs]


def foreign_gradient(case: Case, base: Pass) -> float | None:
    """How much the gradient at other samples changes if the target of one sample does, relative to its own change."""
    targets = case.targets
    if case.loss is None or not isinstance(targets, Tensor) or targets.dim() == 0 or len(targets) < 2:
        return None
    changed = targets.clone()
    sample = len(targets) // 2
    others = [index for index in range(len(targets)) if not torch.equal(targets[index], targets[sample])]
    if not others:
        return None
    changed[sample] = targets[others[0]]
    before, after = (_loss_gradient(case, base.output, each)[1] for each in (targets, changed))
    moves = [
        (a - b).flatten(1).abs().amax(1) if a.dim() > 1 else (a - b).abs()
        for a, b in zip(after, before, strict=True)
        if a.dim() and len(a) == len(targets)
    ]
    if not moves:
        return None
    move = torch.stack(moves).amax(0)
    own, foreign = float(move[sample]), float(move[torch.arange(len(move)) != sample].max())
    return foreign / own if own > 0 else None


def pull_of_targets(case: Case, base: Pass) -> float | None:
    """0.0 if a hand-written loss pushes its outputs away from higher targets and is concave in them, else None.

    The targets are exchanged between samples, with the outputs held fixed: a loss that rewards its targets pulls an
    output up where its target rose. Of several outputs, such as means and widths, the one that follows the targets most
    closely is looked at. A loss that does the opposite may mean it (a distance against a label that says
    "similar"), but then it has a minimum. A negated loss is concave: along any direction its gradient grows.
    """
    targets = case.targets
    if (
        case.loss is None
        or not isinstance(targets, Tensor)
        or not targets.is_floating_point()
        or not targets.dim()
    ):
        return None
    before, after = (_loss_gradient(case, base.output, each)[1] for each in (targets, targets.roll(1, 0)))
    rise = targets.roll(1, 0) - targets
    pushes = {
        place: _cosine(after[place] - before[place], rise.expand_as(gradient))
        for place, gradient in enumerate(before)
        if _broadcasts_to(targets.shape, gradient.shape)
    }
    place = max(pushes, key=lambda each: abs(pushes[each]), default=None)
    if place is None or pushes[place] < MIN_PUSH:
        return None
    generator = torch.Generator().manual_seed(PERTURBATION_SEED)
    noise = torch.randn(before[place].shape, generator=generator).to(before[place])
    for direction in (before[place], noise):
        if not _is_concave_along(case, base, place, direction):
            return None
    return 0.0


def _broadcasts_to(targets: torch.Size, output: torch.Size) -> bool:
    """Whether each output has one target: the same shape, or columns that share the one of their sample."""
    is_shared = all(
        of_target in (1, of_output) for of_target, of_output in zip(targets, output, strict=False)
    )
    return len(targets) == len(output) and targets[0] == output[0] and is_shared


def _cosine(one: Tensor, two: Tensor) -> float:
    length = float(one.norm() * two.norm())
    return float((one * two).sum()) / length if length else 0.0


def _is_concave_along(case: Case, base: Pass, place: int, direction: Tensor) -> bool:
    """Whether the gradient at one output turns against a small step of that output."""
    leaves, before = _loss_gradient(case, base.output, case.targets)
    length = float(direction.norm())
    step = (
        direction * (RELATIVE_STEP * float(leaves[place].detach().norm()) / length) if length else direction
    )
    turn = _loss_gradient(case, base.output, case.targets, {place: step})[1][place] - before[place]
    return float((turn * step).sum()) < -MIN_CONCAVITY * float(turn.norm() * step.norm())


def whole_over_halves(case: Case, base: Pass) -> float | None:
    """The loss of the batch over the mean of the losses of its halves; None if outputs or targets cannot be split."""
    output, targets = base.output, case.targets
    if case.loss is None or not isinstance(output, Tensor) or not isinstance(targets, Tensor):
        return None
    size = len(targets) if targets.dim() else 0
    if size < 2 or size % 2 or output.dim() == 0 or len(output) != size:
        return None
    half = size // 2
    halves = [
        float(find_loss(output.detach()[part], case.loss, targets[part]))
        for part in (slice(half), slice(half, None))
    ]
    mean = sum(halves) / 2
    return float(base.loss.detach()) / mean if mean else None
