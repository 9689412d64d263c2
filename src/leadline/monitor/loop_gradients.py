"""What happens to one optimizer's gradients, weights and state between two of its steps.

A few parameters stand for all. Nothing is read from a device: an object's identity and PyTorch's version counter tell
whether a gradient or weight was touched. Values are read only when these say that something is wrong.
"""

from __future__ import annotations

import weakref
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from leadline.checks._loop import STEP_WINDOW
from leadline.tracer.stats import Known, transfer

# Heuristic: parameters that stand for all of an optimizer: the first, the last and one between.
MAX_PROBES = 3
# Heuristic: elements of a probe that are compared; equal by chance only where nothing has changed.
PROBE_ELEMENTS = 64
# Heuristic: elements of each parameter by which replicas are compared.
FINGERPRINT_ELEMENTS = 4
# Heuristic: steps at the start of which weights are compared by value, because `.data` hides writes.
COMPARED_STEPS = 16
# Heuristic: a limit at least this share of the loss scale was multiplied by it on purpose.
MIN_SCALED_LIMIT = 1 / 64
# Heuristic: share of the peak learning rate; step schedules with three drops end at 1/1000 on purpose.
MAX_LOW_RATE = 0.99e-3

Mark = tuple[int, int]
"""The identity of a tensor and its version."""


class Tally:
    """In how many of the last `STEP_WINDOW` steps something was so."""

    __slots__ = ("bits",)

    def __init__(self) -> None:
        self.bits = 0

    def add(self, flag: bool) -> None:
        self.bits = ((self.bits << 1) | flag) & ((1 << STEP_WINDOW) - 1)

    @property
    def count(self) -> int:
        return self.bits.bit_count()


class OptimizerRecord:
    """The steps of one optimizer."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = weakref.ref(optimizer)
        self.is_own = True
        """Whether it is one of the watched optimizers, or holds their parameters."""
        self.ids: frozenset[int] = frozenset()
        """Ids of its parameters."""
        self.probes: list[Tensor] = []
        self.choose_probes()
        self.steps = 0
        self.passes = 0
        """Backward passes that reached it since its last step."""
        self.tallies = {
            name: Tally()
            for name in (
                "stale_gradients",
                "lost_gradients",
                "dropped_passes",
                "unseen_forwards",
                "idle_steps",
                "late_clips",
                "scaled_clips",
                "restored_weights",
            )
        }
        self.peak_rate = 0.0
        self.zero_rate_steps = self.low_rate_steps = 0
        self._marks: list[tuple[weakref.ref[Tensor], int] | None] = []
        """The gradients after the last step, and their versions."""
        self._compare_until = 0
        self._all_passes = 0
        self._is_gone = False
        self.was_fresh = False
        """Whether the last step found an empty state and filled it, though its parameters had stepped before."""
        self._versions: list[Mark | None] = []
        """The gradients before the current backward pass."""
        self._is_reset = True
        self._is_stale = False
        self._was_zeroed = False
        """`zero_grad` came after the last backward pass."""
        self._forward_after_loss = False
        self._unused_passes = 0
        """Backward passes since the gradients were cleared or used."""
        self._has_dropped = False
        """Whether gradients were cleared before anything had used them."""
        self._weight_mark: Mark | None = None
        """A weight at the last backward pass: what changes it then, such as an ascent step, uses the gradients."""
        self._is_lost = self._is_fresh = False
        self._passes_at_step = 0
        self._clip = ""
        self._used_gradient: Tensor | None = None
        self._weights = WeightProbe()
        self._is_partial = False
        """Whether the beginning of the current step was not followed."""

    @property
    def undecided(self) -> list[Tensor]:
        """Judgments of its weights that are still on a device."""
        return self._weights.undecided

    def decide(self, known: Known) -> None:
        """Take what is undecided from what was transferred."""
        self._weights.decide(known)

    def choose_probes(self) -> None:
        """Choose the parameters that stand for all; again if groups were added."""
        parameters = self.parameters()
        trainable = [each for each in parameters if each.requires_grad]
        self.ids = frozenset(map(id, parameters))
        places = {0, len(trainable) // 2, len(trainable) - 1} if trainable else set()
        self.probes = [trainable[place] for place in sorted(places)][:MAX_PROBES]

    def parameters(self) -> list[Tensor]:
        optimizer = self.optimizer()
        groups = [] if optimizer is None else optimizer.param_groups
        return [each for group in groups for each in group["params"] if isinstance(each, Tensor)]

    def is_of(self, owner: Optimizer) -> bool:
        """Whether this is the record of an optimizer, or of one with the same groups around it."""
        optimizer = self.optimizer()
        return optimizer is owner or (optimizer is not None and optimizer.param_groups is owner.param_groups)

    def holds(self, parameters: Iterable[Tensor]) -> bool:
        return any(id(each) in self.ids for each in parameters)

    @property
    def has_gradients(self) -> bool:
        return any(each.grad is not None for each in self.probes)

    def zeroed(self) -> None:
        is_used = bool(self.probes) and self._weight_mark != _mark(self.probes[0])
        self._has_dropped |= self._unused_passes > 0 and not is_used
        self._unused_passes = 0
        self._is_reset, self._is_stale = True, False
        self._was_zeroed = self.passes > 0
        self._forward_after_loss = False

    def forward(self) -> None:
        self._forward_after_loss = True

    def resume(self) -> None:
        """Follow again after a rest. What the current step did before is not known, so it is not judged."""
        self._marks, self._used_gradient, self._weights = [], None, WeightProbe()
        self.passes, self._clip, self._all_passes = 0, "", -1
        self._is_partial = self._is_reset = True
        self._is_stale = self._was_zeroed = self._forward_after_loss = False
        self._unused_passes, self._has_dropped = 0, False

    def begin_pass(self) -> None:
        """Note the gradients before a backward pass."""
        self._versions = _marks(self.probes)

    def before_backward(self) -> None:
        self.begin_pass()
        if all(each is None for each in self._versions):
            self._is_stale = False  # cleared by hand after a pass that was another's
        if self.steps and not self.passes and not self._is_reset:
            self._is_reset = not self._are_untouched()
            self._is_stale = not self._is_reset and _any_nonzero(self.probes)

    def is_reached(self) -> bool:
        """Whether the backward pass reached these parameters."""
        now = _marks(self.probes)
        return any(
            mark is not None and mark != before for mark, before in zip(now, self._versions, strict=False)
        )

    def after_backward(self) -> bool:
        """Return whether the backward pass reached these parameters."""
        reached = self.is_reached()
        self.passes += reached
        if reached:
            self._was_zeroed = False
            self._unused_passes += 1
            self._weight_mark = _mark(self.probes[0])
        return reached

    def clipped(self, limit: float, scale: float) -> None:
        """Note how gradients were clipped; `scale` is the loss scale that they still carry, or 1."""
        if not limit < float("inf"):
            return  # it only measures the norm
        if not self.passes:
            self._clip = self._clip or "late"
        else:
            self._clip = "scaled" if scale > 1 and limit < MIN_SCALED_LIMIT * scale else "right"

    def before_step(self, optimizer: Optimizer, *, stepped_before: bool) -> None:
        self._passes_at_step = self.passes
        self._is_gone = bool(self.probes) and not self.has_gradients and _all_gone(optimizer)
        is_zero = self._was_zeroed and not self._is_gone and not _any_nonzero(self.probes)
        self._is_lost = bool(self.passes) and (self._is_gone or is_zero)
        self._is_fresh = stepped_before and bool(self.probes) and not optimizer.state.get(self.probes[0])
        if self.probes:
            self._weights.before_step(self.probes[0], compare=self.steps < COMPARED_STEPS)

    def after_step(self, optimizer: Optimizer, all_passes: int) -> None:
        """Judge the step; `all_passes` counts the backward passes of the process."""
        computed_inside = self.passes > self._passes_at_step  # by a closure
        is_idle = self.steps > 0 and not self.passes and not self._is_reset and self._uses_gradient_again()
        is_empty = self.steps > 0 and self._is_gone and all_passes == self._all_passes
        self._all_passes = all_passes
        self.was_fresh = self._is_fresh and bool(optimizer.state.get(self.probes[0]))
        flags = {
            "stale_gradients": self._is_stale and self.passes > 0,
            "lost_gradients": self._is_lost and not computed_inside,
            "dropped_passes": self._has_dropped and self._unused_passes > 0 and not computed_inside,
            "unseen_forwards": self._is_lost and not computed_inside and self._forward_after_loss,
            "idle_steps": is_idle or is_empty,
            "late_clips": self._clip == "late",
            "scaled_clips": self._clip == "scaled",
        }
        judged = [*flags.items(), *(("restored_weights", flag) for flag in self._weights.take())]
        for name, flag in judged:
            tally = self.tallies[name]
            if (flag or tally.bits) and not self._is_partial:
                tally.add(flag)
        self._follow_rate(optimizer)
        if self.probes:
            self._weights.after_step(self.probes[0])
        self.steps += 1
        self.passes, self._clip = 0, ""
        self._unused_passes, self._has_dropped = 0, False
        self._marks = [
            None if each.grad is None else (weakref.ref(each.grad), each.grad._version)
            for each in self.probes
        ]
        is_compared = self.steps <= self._compare_until and self.has_gradients
        self._used_gradient = self._sample_gradient() if is_compared else None
        self._is_reset = self._is_stale = self._was_zeroed = self._forward_after_loss = False
        self._is_partial = False

    def _uses_gradient_again(self) -> bool:
        """Whether the gradients are those of the last step, untouched.

        Values are compared as well from the second time on, because `.data` hides writes.
        """
        if not self._are_untouched() or not self.has_gradients:
            return False
        before, self._compare_until = self._used_gradient, self.steps + COMPARED_STEPS
        return before is None or torch.equal(before, self._sample_gradient())

    def _sample_gradient(self) -> Tensor:
        return sample(next(each.grad for each in self.probes if each.grad is not None))

    def _are_untouched(self) -> bool:
        """Whether the gradients are the tensors that they were after the last step, in the same version."""
        return len(self._marks) == len(self.probes) and all(
            mark is not None
            and mark[0]() is each.grad
            and each.grad is not None
            and mark[1] == each.grad._version
            for mark, each in zip(self._marks, self.probes, strict=True)
        )

    def _follow_rate(self, optimizer: Optimizer) -> None:
        rates = [float(group["lr"]) for group in optimizer.param_groups if group.get("lr") is not None]
        if not rates:
            return
        rate = max(rates)
        self.peak_rate = max(self.peak_rate, rate)
        self.zero_rate_steps = self.zero_rate_steps + 1 if rate == 0 else 0
        is_low = rate < self.peak_rate * MAX_LOW_RATE
        self.low_rate_steps = self.low_rate_steps + 1 if is_low else 0


class WeightProbe:
    """Whether what a step did to one parameter was undone before the next step."""

    def __init__(self) -> None:
        self.undecided: list[Tensor] = []
        """Whether steps were undone, still on a device."""
        self._decided: list[bool] = []
        self._mark: Mark | None = None
        self._before: Tensor | None = None
        self._after: Tensor | None = None
        self._compare_until = 0
        self._steps = 0

    def before_step(self, parameter: Tensor, *, compare: bool) -> None:
        self._steps += 1
        is_written = self._mark is not None and self._mark != _mark(parameter)
        if is_written:
            self._compare_until = self._steps + COMPARED_STEPS
        if not compare and self._steps > self._compare_until:
            self._before = self._after = None
            self._decided.append(False)
            if self.undecided:
                self.decide(transfer(self.undecided))
            return
        now = sample(parameter)
        if self._before is not None and self._after is not None:
            self._compare(now, self._before, self._after)
        else:
            self._decided.append(False)
        self._before = now

    def _compare(self, now: Tensor, before: Tensor, after: Tensor) -> None:
        """Decide whether the last step was undone; if the host would have to wait for that, decide for many at once."""
        if now.device.type == "cpu":
            self._decided.append(torch.equal(now, before) and not torch.equal(before, after))
            return
        self.undecided.append((now == before).all() & (before != after).any())
        if len(self.undecided) >= COMPARED_STEPS:
            self.decide(transfer(self.undecided))

    def decide(self, known: Known) -> None:
        """Take what is undecided from what was transferred."""
        self._decided += [bool(known[id(each)][0]) for each in self.undecided]
        self.undecided = []

    def take(self) -> list[bool]:
        """Return whether the steps were undone that were decided since the last call, in order."""
        decided, self._decided = self._decided, []
        return decided

    def after_step(self, parameter: Tensor) -> None:
        self._mark = _mark(parameter)
        self._after = None if self._before is None else sample(parameter)


def parameter_ids(optimizer: Optimizer) -> frozenset[int]:
    """Ids of everything that the optimizer holds."""
    return frozenset(id(each) for group in optimizer.param_groups for each in group["params"])


def sample(tensor: Tensor) -> Tensor:
    """Return a copy of the first elements of a tensor; of the shard that this process holds, or the stored ones."""
    with torch.no_grad():
        return _first_elements(tensor).clone()


def fingerprint(parameters: Iterable[Tensor]) -> int:
    """Return a number that is the same in every process whose parameters are the same, as far as some elements show."""
    return hash(tuple(value for each in parameters for value in sample(each)[:FINGERPRINT_ELEMENTS].tolist()))


def _mark(tensor: Tensor) -> Mark:
    return id(tensor), tensor._version


def _marks(parameters: Sequence[Tensor]) -> list[Mark | None]:
    gradients = [each.grad for each in parameters]
    return [None if each is None else (id(each), each._version) for each in gradients]


def _any_nonzero(parameters: Collection[Tensor]) -> bool:
    """Whether a gradient has an element that is not zero, as far as its first elements show."""
    gradients = [each.grad for each in parameters if each.grad is not None]
    found = [_first_elements(each).any() for each in gradients]
    return any(values[0] for values in transfer(found).values())


def _first_elements(tensor: Tensor) -> Tensor:
    values: Any = getattr(tensor, "_local_tensor", tensor).detach()
    if values.layout is not torch.strided:
        values = values.coalesce().values()
    return values.reshape(-1)[:PROBE_ELEMENTS]  # type: ignore[no-any-return]


def _all_gone(optimizer: Optimizer) -> bool:
    return all(each.grad is None for group in optimizer.param_groups for each in group["params"])
