"""The loss as a function of outputs and targets: the outputs of a pass are held fixed while something else changes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from leadline.case import Case
from leadline.readings.wiring.batch import PERTURBATION_SEED, replace_tensors
from leadline.tracer.inputs import find_loss
from leadline.tracer.passes import Pass
from leadline.tracer.values import tensors_in

# Heuristic: a target that changes other samples and not its own has a ratio without bound; this is far above any other.
MAX_FOREIGN = 1000.0
# Heuristic: steps of the outputs, over the size of them or of their targets; large against rounding, and the second one
# passes many targets.
RELATIVE_STEPS = (0.1, 1.0)
# Heuristic: over the gradient; less is rounding.
MIN_TURN = 1e-4
# Heuristic: cosine between a rise of the targets and that of the gradient; 1 for a negated square, near 0 by chance.
MIN_PUSH = 0.3
# Heuristic: factors by which an output is enlarged; the last ones are far beyond any minimum.
ENLARGEMENTS = (1.0, 64.0, 256.0, 1024.0)
# Derived: from one enlargement to the next by 4, a loss that is linear far out falls by 4 times as much, a quadratic
# one by 16 times; their geometric mean.
MIN_ACCELERATION = 8.0
# Heuristic: share of the turns that is against the step; -1 for a negated square or distance, near 0 for a saddle.
MIN_CONCAVITY = 0.5


T = TypeVar("T")


def unless_refused(measure: Callable[[Case, Pass], T | None], case: Case, base: Pass) -> T | None:
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
    ratios = [
        ratio
        for one, two in zip(before, after, strict=True)
        for axis in _sample_axes(one, len(targets))
        if (ratio := _foreign_share(two - one, axis, sample)) is not None
    ]
    return min(ratios, default=None)


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


def pull_of_targets(case: Case, base: Pass) -> float | None:
    """0.0 if a hand-written loss pushes its outputs away from higher targets and is concave in them, else None.

    The targets are exchanged between samples, with the outputs held fixed: a loss that rewards its targets pulls an
    output up where its target rose. Of several outputs, such as means and widths, the one that follows the targets most
    closely is looked at. A loss that does the opposite may mean it (a distance against a label that says
    "similar"), but then it has a minimum. A negated loss is concave: along any direction its gradient grows.
    """
    if case.loss is None:
        return None
    leaves, before = _loss_gradient(case, base.output, case.targets)
    learning = [each.requires_grad for each in tensors_in(base.output) if each.is_floating_point()]
    for rise, after in _exchanges(case, base):
        pushes = {
            place: _cosine(after[place] - before[place], _fitted(rise, gradient).expand_as(gradient))
            for place, gradient in enumerate(before)
            if learning[place] and _broadcasts_to(_fitted(rise, gradient).shape, gradient.shape)
        }
        place = max(pushes, key=lambda each: abs(pushes[each]), default=None)
        if place is None or pushes[place] < MIN_PUSH:
            continue
        size = max(float(leaves[place].detach().norm()), float(_fitted(rise, before[place]).norm()))
        generator = torch.Generator().manual_seed(PERTURBATION_SEED)
        noise = torch.randn(before[place].shape, generator=generator).to(before[place])
        if all(_is_concave_along(case, base, place, each, size) for each in (before[place], noise)):
            return 0.0
    return None


def _exchanges(case: Case, base: Pass) -> Iterator[tuple[Tensor, list[Tensor]]]:
    """For each target: its rise when it is exchanged between samples, and the gradients of the outputs then.

    Targets are those of the batch, and outputs that were computed without a graph, such as those of a teacher.
    """
    for target in tensors_in(case.targets):
        if target.is_floating_point() and target.dim():
            changed = replace_tensors(case.targets, {id(target): target.roll(1, 0)})
            yield target.roll(1, 0) - target, _loss_gradient(case, base.output, changed)[1]
    outputs = [each for each in tensors_in(base.output) if each.is_floating_point()]
    for place, output in enumerate(outputs):
        if not output.requires_grad and output.dim():
            rise = output.roll(1, 0) - output
            yield rise, _loss_gradient(case, base.output, case.targets, {place: rise})[1]


def _fitted(target: Tensor, output: Tensor) -> Tensor:
    """The target with a last axis of length 1 if the outputs have one more axis, such as one of quantiles."""
    return target.unsqueeze(-1) if target.shape == output.shape[:-1] and target.dim() else target


def _broadcasts_to(targets: torch.Size, output: torch.Size) -> bool:
    """Whether each output has one target: the same shape, or columns that share the one of their sample."""
    is_shared = all(
        of_target in (1, of_output) for of_target, of_output in zip(targets, output, strict=False)
    )
    return len(targets) == len(output) > 0 and targets[0] == output[0] and is_shared


def _cosine(one: Tensor, two: Tensor) -> float:
    length = float(one.norm() * two.norm())
    return float((one * two).sum()) / length if length else 0.0


def _is_concave_along(case: Case, base: Pass, place: int, direction: Tensor, size: float) -> bool:
    """Whether the gradient at one output turns against steps of that output, by `size` times each of some factors.

    The sum of turns times steps is compared with that of their magnitudes, element by element: it is minus all of it
    for a concave loss of each element, also if only few of them turn, as those that pass their target in a distance do.
    """
    before = _loss_gradient(case, base.output, case.targets)[1][place]
    length = float(direction.norm())
    shares = []
    for factor in RELATIVE_STEPS if length else ():
        step = direction * (factor * size / length)
        product = (_loss_gradient(case, base.output, case.targets, {place: step})[1][place] - before) * step
        if float(product.abs().sum()) > MIN_TURN * float((before * step).abs().sum()):
            shares.append(float(product.sum() / product.abs().sum()))
    return bool(shares) and max(shares) < -MIN_CONCAVITY


def unbounded_output(case: Case, base: Pass) -> tuple[int, ...] | None:
    """The shape of an output whose growth lowers the loss faster and faster, without end; None if there is none.

    Along a ray, a convex loss cannot fall faster and faster, and one that is bounded below stops to fall. A score that
    is maximized without a bound, such as that of a critic, falls in proportion, and is left out.
    """
    if case.loss is None:
        return None
    outputs = [each for each in tensors_in(base.output) if each.is_floating_point()]
    for place, output in enumerate(outputs):
        if output.requires_grad and unless_refused(partial(_falls_without_end, place=place), case, base):
            return tuple(output.shape)
    return None


def _falls_without_end(case: Case, base: Pass, place: int) -> bool:
    """Whether the loss falls faster than in proportion as one output grows in its own direction, or against it."""
    return any(_falls_along(case, base, place, sign) for sign in (1, -1))


def _falls_along(case: Case, base: Pass, place: int, sign: int) -> bool:
    first, *losses = [_loss_at(case, base, place, sign * factor) for factor in ENLARGEMENTS]
    if losses[-1] == -math.inf:
        return True
    if not all(map(math.isfinite, (first, *losses))) or losses[-1] >= first - abs(first):
        return False
    earlier, later = losses[0] - losses[1], losses[1] - losses[2]
    return earlier > 0 and later > MIN_ACCELERATION * earlier


def _loss_at(case: Case, base: Pass, place: int, factor: float) -> float:
    """The loss with one of the outputs multiplied by a factor, and all others as they are."""
    count = -1

    def enlarge(item: Any) -> Any:
        nonlocal count
        if not isinstance(item, Tensor):
            return item
        count += item.is_floating_point()
        return item.detach() * factor if item.is_floating_point() and count == place else item.detach()

    with torch.no_grad():
        return float(find_loss(tree_map(enlarge, base.output), case.loss, case.targets))


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
