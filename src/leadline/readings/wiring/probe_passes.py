"""Passes on changed batches, and how their outcomes compare with that of the batch itself.

All passes run in eval mode with the same random numbers, so batch norm and dropout mix nothing. Changes within the
noise of repeating the same pass are no changes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from leadline.case import Case
from leadline.errors import summarize_error
from leadline.readings.wiring.batch import all_positions, free_positions, replace_tensors
from leadline.readings.wiring.output_changes import change_along
from leadline.readings.wiring.places import PassComparison
from leadline.records.wiring import Perturbation
from leadline.tracer.passes import OpPrint, Pass, PassRunner, as_real, has_signal
from leadline.tracer.values import tensors_in

# Derived: several roundings of the same sum in another order stay within a few units in the last place.
MAX_ROUNDINGS = 16
# Heuristic: a change must exceed the noise of repeating the pass by this factor.
MIN_OVER_NOISE = 10.0


class NotProbedError(Exception):
    """A probe cannot be made; its text is the reason."""


class RefusedBatchError(NotProbedError):
    """The model or its loss raised an error on a changed batch."""


@dataclass(frozen=True, slots=True)
class PassOutcome:
    """What one pass is compared by: the outputs that the loss reads, without their graph."""

    outputs: list[Tensor]
    changed: dict[int, Tensor]
    """What replaced tensors of the batch, by the `id` of the original: to make the pass again."""
    is_random: bool


def outcome_of(one: Pass, changed: dict[int, Tensor]) -> PassOutcome:
    """What a pass on a `changed` batch returned."""
    return PassOutcome([as_real(each.detach()) for each in _read_outputs(one)], changed, one.is_random)


def _read_outputs(one: Pass) -> list[Tensor]:
    """The outputs of the model if they have elements, else what the loss op was given.

    A model may return nothing but a loss that it computes by hand. Then only its ops can be compared.
    """
    return _own_outputs(one) or [call.predictions for call in one.loss_calls]


def _own_outputs(one: Pass) -> list[Tensor]:
    return [
        each
        for each in tensors_in(one.output)
        if has_signal(each) and not each.is_nested and each.numel() > 1
    ]


class ProbePasses:
    """The passes of one case; `base` and `noise` are set by whoever makes the first one."""

    base: PassOutcome
    noise: float

    def __init__(self, case: Case, runner: PassRunner) -> None:
        self.case = case
        self.runner = runner
        self.repeated = 0
        """Passes that were made again to find an op."""
        self.keeps_counted = False
        """Whether tokens that the model may count stay in place, because it refused a batch in which they did not."""
        self._returns_outputs = False
        """Whether the outputs of an observed pass were the model's own, so that no pass has to find them in its ops."""

    @property
    def made(self) -> int:
        """Forward passes, without those that were made again to find an op."""
        return self.runner.made - self.repeated

    def run(self, changed: dict[int, Tensor]) -> PassOutcome:
        return outcome_of(self._one_pass(changed, is_observed=not self._returns_outputs), changed)

    def observe(self, changed: dict[int, Tensor], *, watched_length: int | None = None) -> Pass:
        """Make a pass with all that it notes."""
        one = self._one_pass(changed, watched_length=watched_length)
        self._returns_outputs = bool(_own_outputs(one))
        return one

    def _one_pass(self, changed: dict[int, Tensor], **how: Any) -> Pass:
        inputs, targets = replace_tensors((self.case.inputs, self.case.targets), changed)
        try:
            return self.runner.run(inputs, targets, **how)
        except Exception as error:  # any model can fail on changed inputs, with any error
            refusal = RefusedBatchError(f"a further pass raised {summarize_error(error)}")
        raise refusal  # without the frames of the model, which would hold the pass that failed

    def run_changed(
        self,
        sources: Mapping[int, Tensor],
        axis: int,
        change: Callable[[Tensor, Tensor], Tensor],
        others: Mapping[int, Tensor] = MappingProxyType({}),
    ) -> PassOutcome | None:
        """The outcome of a pass on changed inputs; None if nothing changed.

        `sources` are what is changed, and `others` what else replaces inputs, by the `id` of the original. `change`
        gets a tensor and the positions along `axis` that it may change and draw from: all, until the model
        refuses a batch. It may count the tokens that stand for parts of an image, which stay in place from then on.
        """

        def changed() -> dict[int, Tensor]:
            free = free_positions if self.keeps_counted else all_positions
            tensors = {key: change(each, free(each, axis)) for key, each in sources.items()}
            is_same = all(torch.equal(tensors[key], each) for key, each in sources.items())
            return {} if is_same else {**others, **tensors}

        tensors = changed()
        try:
            return self.run(tensors) if tensors else None
        except RefusedBatchError as error:
            if self.keeps_counted:
                raise
            refusal = error
        self.keeps_counted = True
        tensors = changed()
        if not tensors:
            raise refusal
        return self.run(tensors)

    def compare(
        self, base: PassOutcome, other: PassOutcome, length: int, allowed: Collection[int]
    ) -> PassComparison:
        """Compare two passes op by op along axes of this length, for which both are made again with fingerprints."""
        base_prints, roots = self._prints(base, length)
        other_prints, _ = self._prints(other, length)
        return PassComparison(base_prints, other_prints, roots, length, allowed)

    def _prints(self, outcome: PassOutcome, length: int) -> tuple[list[OpPrint], list[int]]:
        """The prints of all ops of a pass, and the places of those that made its outputs."""
        one = self.observe(outcome.changed, watched_length=length)
        self.repeated += 1
        places = [one.print_of.find(each) for each in _read_outputs(one) or [one.loss]]
        return one.prints, [place for place in places if place is not None]

    def tolerance(self) -> float:
        roundings = max((torch.finfo(each.dtype).eps for each in self.base.outputs), default=0.0)
        return max(MIN_OVER_NOISE * self.noise, MAX_ROUNDINGS * roundings)

    def moved(
        self, base: PassOutcome, other: PassOutcome, length: int, axis: int, tolerance: float | None = None
    ) -> tuple[float, ...]:
        """By index along an axis: the largest relative change of any output, where it exceeds the tolerance.

        The tolerance is that of rounding and noise, unless another is given.
        """
        changes = [
            change
            for before, after in zip(base.outputs, other.outputs, strict=False)
            if (change := change_along(before, after, length, axis)) is not None
        ]
        if not changes:
            raise NotProbedError("the outputs have no axis that matches the inputs")
        largest = torch.stack(changes).amax(0)
        largest[largest <= (self.tolerance() if tolerance is None else tolerance)] = 0.0
        return tuple(largest.tolist())


def own_error(error: Exception) -> str:
    """What a probe says that has a bug: the model has not refused anything."""
    return f"Leadline itself raised {summarize_error(error)}; please report it"


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleBatch:
    """Tensors that have an axis of samples, by the `id` of the original, and the outcome of a pass on them."""

    base: PassOutcome
    data: Mapping[int, Tensor]
    """Inputs that carry a signal."""
    masks: Mapping[int, Tensor]
    others: Mapping[int, Tensor]
    """All inputs and targets with samples."""
    samples: int

    def redrawn_masks(self, redrawn: Sequence[int], axis: int) -> dict[int, Tensor]:
        """The masks, in which each of these samples has that of the sample before it: a valid mask as a whole."""
        changed = {key: each.clone() for key, each in self.masks.items()}
        for key, mask in self.masks.items():
            for sample in redrawn:
                changed[key].select(axis, sample).copy_(mask.select(axis, sample - 1))
        return changed


def perturbation_inside(comparison: PassComparison, redrawn: Sequence[int]) -> Perturbation:
    """The change of samples, seen at an op that puts elements of some samples into others."""
    found = comparison.find_transfer()
    if found is None:
        raise NotProbedError("the model returns nothing but its loss, which may compare samples")
    site, reached = found
    forbidden = tuple(
        index for index, is_reached in enumerate(reached) if is_reached and index not in redrawn
    )
    return Perturbation(
        kind="sample",
        first=redrawn[0],
        last=redrawn[-1],
        changed=len(redrawn),
        moved=tuple(map(float, reached)),
        forbidden=forbidden,
        site=site,
    )
