"""Which way a loss pushes: terms that are subtracted, targets that outputs move away from, and losses without a bound.

The outputs of a pass are held fixed or moved by hand, so no pass of the model is made.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from leadline.case import Case
from leadline.readings.wiring.batch import PERTURBATION_SEED, replace_tensors
from leadline.readings.wiring.held_outputs import hold_outputs, unless_refused
from leadline.tracer.inputs import find_loss
from leadline.tracer.passes import ObservedLoss, Pass
from leadline.tracer.values import tensors_in

# Heuristic: steps of the outputs, over the size of them or of their targets; large against rounding, and the second one
# passes many targets.
RELATIVE_STEPS = (0.1, 1.0)
# Heuristic: over the gradient; less is rounding.
MIN_TURN = 1e-4
# Heuristic: cosine between a rise of the targets and that of the gradient; 1 for a negated square, near 0 by chance.
MIN_PUSH = 0.3
# Heuristic: share of the turns that is against the step; -1 for a negated square or distance, near 0 for a saddle.
MIN_CONCAVITY = 0.5
# Heuristic: shorter vectors may mean the opposite of their target, as a distance and a label that says "similar" do.
MIN_VECTOR = 4
# Heuristic: fewer samples agree by chance.
MIN_SAMPLES = 8
# Derived: a loss that rewards its targets has 1, a negated one 0.
MAX_SHARE_TOWARD = 0.1
# Heuristic: steps over the size of the outputs; a loss with a minimum rises before the last one.
LONG_STEPS = (0.1, 1.0, 10.0, 100.0)
# Heuristic: factors by which an output is enlarged; the last ones are far beyond any minimum.
ENLARGEMENTS = (1.0, 64.0, 256.0, 1024.0)
# Derived: from one enlargement to the next by 4, a loss that is linear far out falls by 4 times as much, a quadratic
# one by 16 times; their geometric mean.
MIN_ACCELERATION = 8.0
# Derived: weights of one term are equal, apart from rounding; advantages and class weights are not.
MAX_WEIGHT_SPREAD = 1e-3


def subtracted_terms(base: Pass) -> tuple[str, ...]:
    """The loss ops whose result the loss falls with, by name: terms that are subtracted.

    Terms that another part of the network is meant to lose are left out: what compares two learned tensors, and
    constant targets, as a generator has them. Similarities of an output and a fixed vector count if they are added.
    """
    names = [call.name for call in base.loss_calls if _is_judged(call) and _weight_sign(base, call) < 0]
    similarities = [(call, _weight_sign(base, call)) for call in base.similarities if _has_fixed_side(call)]
    if not any(sign < 0 for _, sign in similarities):  # similarities to negatives are added, too
        names += [call.name for call, sign in similarities if sign > 0]
    return tuple(names)


def _is_judged(call: ObservedLoss) -> bool:
    targets = call.targets
    if targets is None or targets.requires_grad or not call.predictions.requires_grad:
        return False
    return bool((targets != targets.flatten()[:1]).any())


def _has_fixed_side(call: ObservedLoss) -> bool:
    """Whether one of two vectors learns and the other is given, by the batch or by a teacher."""
    return call.targets is not None and call.predictions.requires_grad != call.targets.requires_grad


def _weight_sign(base: Pass, call: ObservedLoss) -> int:
    """The sign of the weight that the result of an op has in the loss; 0 if its elements have different weights."""
    if call.result is None or not call.result.requires_grad:
        return 0
    weight = torch.autograd.grad(base.loss, call.result, retain_graph=True, allow_unused=True)[0]
    if weight is None or not bool((weight != 0).any()):
        return 0
    weight = weight[weight != 0]
    spread = float((weight.max() - weight.min()) / weight.abs().max())
    return 0 if spread > MAX_WEIGHT_SPREAD else int(weight.flatten()[0].sign())


def toward_targets(case: Case, base: Pass) -> float | None:
    """0.0 if a handwritten loss pushes outputs away from their targets and no minimum ends that, else None."""
    for measure in (pull_of_targets, push_from_vectors):
        share = unless_refused(measure, case, base)
        if share is not None:
            return share
    return None


def pull_of_targets(case: Case, base: Pass) -> float | None:
    """0.0 if a hand-written loss pushes its outputs away from higher targets and is concave in them, else None.

    The targets are exchanged between samples, with the outputs held fixed: a loss that rewards its targets pulls an
    output up where its target rose. Of several outputs, such as means and widths, the one that follows the targets most
    closely is looked at. A loss that does the opposite may mean it (a distance against a label that says
    "similar"), but then it has a minimum. A negated loss is concave: along any direction its gradient grows.
    """
    if case.loss is None:
        return None
    held = hold_outputs(case, base.output, case.targets)
    leaves, before = held.outputs, held.gradients
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
            yield target.roll(1, 0) - target, hold_outputs(case, base.output, changed).gradients
    outputs = [each for each in tensors_in(base.output) if each.is_floating_point()]
    for place, output in enumerate(outputs):
        if not output.requires_grad and output.dim():
            rise = output.roll(1, 0) - output
            yield rise, hold_outputs(case, base.output, case.targets, {place: rise}).gradients


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
    before = hold_outputs(case, base.output, case.targets).gradients[place]
    length = float(direction.norm())
    shares = []
    for factor in RELATIVE_STEPS if length else ():
        step = direction * (factor * size / length)
        after = hold_outputs(case, base.output, case.targets, {place: step}).gradients[place]
        product = (after - before) * step
        if float(product.abs().sum()) > MIN_TURN * float((before * step).abs().sum()):
            shares.append(float(product.sum() / product.abs().sum()))
    return bool(shares) and max(shares) < -MIN_CONCAVITY


def push_from_vectors(case: Case, base: Pass) -> float | None:
    """0.0 if nearly all output vectors move away from their target and the loss falls however far they go, else None.

    Targets are those of the batch, and outputs that were computed without a graph. An output may be meant to become
    the opposite of its target, as a score is that of a noise, but then the loss has a minimum there.
    """
    if case.loss is None:
        return None
    held = hold_outputs(case, base.output, case.targets)
    outputs = [each for each in tensors_in(base.output) if each.is_floating_point()]
    given = [each for each in tensors_in(case.targets) if each.is_floating_point()]
    fixed = [*given, *(each for each in outputs if not each.requires_grad)]
    for place, (leaf, gradient) in enumerate(zip(held.outputs, held.gradients, strict=True)):
        if not outputs[place].requires_grad or not _are_vectors(leaf):
            continue
        shares = [_share_toward(leaf, gradient, each) for each in fixed if each.shape == leaf.shape]
        known = [share for share in shares if share is not None]
        if known and max(known) <= MAX_SHARE_TOWARD and _falls(case, base, place, gradient):
            return 0.0
    return None


def _are_vectors(output: Tensor) -> bool:
    return output.dim() > 1 and len(output) >= MIN_SAMPLES and output.size(-1) >= MIN_VECTOR


def _share_toward(output: Tensor, gradient: Tensor, target: Tensor) -> float | None:
    """Share of the samples that a step against the gradient brings closer to their target."""
    closer = -(gradient * (target.detach() - output.detach())).flatten(1).sum(1)
    counted = gradient.flatten(1).abs().amax(1) > 0
    return float((closer > 0)[counted].double().mean()) if int(counted.sum()) >= MIN_SAMPLES else None


def _falls(case: Case, base: Pass, place: int, direction: Tensor) -> bool:
    """Whether the loss falls with every longer step of one output."""
    losses = [loss for loss, _ in _descent(case, base, place, direction)]
    return all(later < earlier for earlier, later in pairwise(losses))


def _descent(case: Case, base: Pass, place: int, gradient: Tensor) -> list[tuple[float, Tensor]]:
    """Loss and gradient of one output at the pass and after ever longer steps against its gradient there."""
    output = [each for each in tensors_in(base.output) if each.is_floating_point()][place]
    size = float(output.detach().norm()) or 1.0
    unit = -gradient * (size / float(gradient.norm()))
    found = []
    for factor in (0.0, *LONG_STEPS):
        held = hold_outputs(case, base.output, case.targets, {place: factor * unit})
        found.append((held.loss, held.gradients[place]))
    return found


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
