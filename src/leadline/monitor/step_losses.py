"""The losses of a step: those at which backward passes begin, and the number that is recorded."""

from __future__ import annotations

import math
from collections.abc import Sequence
from time import perf_counter
from typing import Any, Protocol

from torch import Tensor

from leadline.monitor.step_problems import StepProblems
from leadline.tracer.stats import Known

Losses = Sequence[Tensor | float]


class LossRecord(Protocol):
    """The part of a step's record that is about its losses."""

    step: int
    stepped: set[int]
    root_losses: list[Tensor | float]
    loss_seconds: float


class BackwardLosses:
    """Takes the loss of a step from its backward passes, for loops that do not pass it."""

    def __init__(self, problems: StepProblems | None = None) -> None:
        self.record: LossRecord | None = None
        """The current step."""
        self.is_needed = True
        """False if the user passes losses."""
        self._problems = problems
        self._noted: Tensor | float | None = None
        """The loss of the current backward pass."""

    def note(self, loss: Tensor, root: Tensor) -> None:
        """Note the loss of a backward pass that begins at `root`; of a closure that is evaluated again, the first.

        `loss` is without a loss scale.
        """
        self._noted = None
        record = self._open_record()
        if record is None:
            return
        start = perf_counter()
        self._noted = to_number(loss)
        self._locate(record, self._noted, root)
        record.loss_seconds += perf_counter() - start

    def add(self) -> None:
        """Count the loss that was noted, because its backward pass has reached watched parameters."""
        if self._noted is not None and self.record is not None:
            self.record.root_losses.append(self._noted)

    def add_plain(self, loss: Tensor, start: float) -> None:
        """Note and count at once the loss of a backward pass without a loss scale; the watch works since `start`."""
        record = self._open_record()
        if record is None:
            return
        value = loss.item() if loss.is_cpu else to_number(loss)
        self._locate(record, value, loss)
        record.root_losses.append(value)
        record.loss_seconds += perf_counter() - start

    def forget(self) -> None:
        """Forget losses whose gradients were cleared; not those of a closure, which clears them itself."""
        if self.record is not None and not self.record.stepped:
            self.record.root_losses.clear()

    def _open_record(self) -> LossRecord | None:
        """The current step, if it takes another loss."""
        record = self.record
        is_open = record is not None and not (record.stepped and record.root_losses)
        return record if self.is_needed and is_open else None

    def _locate(self, record: LossRecord, value: Tensor | float, root: Tensor) -> None:
        if type(value) is float and not math.isfinite(value) and self._problems is not None:
            self._problems.locate_non_finite(record.step, root)


def to_number(loss: Tensor | float) -> Tensor | float:
    """Return a float if that needs no wait, else a new tensor without a graph."""
    if type(loss) is Tensor and loss.is_cpu and loss.numel() == 1:
        return float(loss.item())
    if not isinstance(loss, Tensor):
        return float(loss)
    mean = loss.detach().mean()
    return float(mean) if loss.device.type == "cpu" else mean


def is_on_device(number: Any) -> bool:
    """Whether reading the number waits for a device."""
    return isinstance(number, Tensor) and number.device.type != "cpu"


def receive(numbers: Losses, known: Known) -> list[Tensor | float]:
    """Return the numbers, with those that were transferred as floats."""
    return [known[id(each)][0] if isinstance(each, Tensor) else each for each in numbers]


def largest(rates: Losses) -> float | None:
    """Return the largest learning rate; None if there is none."""
    return float(max(rates)) if rates else None


def mean_loss(losses: Losses) -> float | None:
    """Return the mean over the micro-batches of a step; None if there is no loss."""
    return sum(float(each) for each in losses) / len(losses) if losses else None
