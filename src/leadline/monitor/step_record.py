"""One training step in progress: its loss, learning rate, closures and measurements."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from torch import Tensor

from leadline.monitor.block_exits import BlockMoments
from leadline.monitor.budget import MIN_PAUSE_STEPS, Level
from leadline.monitor.clipping import RawGradients, clipped_share
from leadline.monitor.norms import Norms, total
from leadline.monitor.parameters import ParameterMeasurements, Vectors
from leadline.monitor.sampler import SampledPass
from leadline.monitor.step_losses import is_on_device, largest, mean_loss, receive
from leadline.tracer.stats import Known


@dataclass(slots=True)
class StepRecord:
    """One step and what was measured of it."""

    step: int
    level: Level
    parameters: ParameterMeasurements
    start: float | None
    """By `perf_counter`; None for the first step, whose start is unknown."""
    first_step: int = field(init=False)
    """The first of the steps since `start`; the losses of all but the last are not recorded."""
    seconds: float = 0.0
    """Seconds of the whole step."""
    training_seconds: float = 0.0
    """Seconds without the watch."""
    loss_seconds: float = 0.0
    """Seconds of `Watch.loss`, which is part of every step at any level."""
    read_seconds: float = 0.0
    """Seconds of reading the trace, which belong to the cost of tracing."""
    losses: list[Tensor | float] = field(default_factory=list)
    root_losses: list[Tensor | float] = field(default_factory=list)
    """Losses on which `backward` was called, without a loss scale; they add up to the loss of the step."""
    loop: dict[str, float] = field(default_factory=dict)
    """Numbers of the loop ledger that changed."""
    unclipped: list[Tensor | float] = field(default_factory=list)
    """Gradient norms before clipping, one per optimizer."""
    costs: dict[Level, float] = field(default_factory=dict)
    """Seconds of the watch by level."""
    stepped: set[int] = field(default_factory=set)
    """Ids of the optimizers that have stepped."""
    sample: SampledPass | None = None
    """The pass that was traced."""
    block_moments: BlockMoments | None = None
    raw_gradients: RawGradients | None = None
    rates: list[Tensor | float] = field(default_factory=list)
    """Learning rates of all groups."""

    def __post_init__(self) -> None:
        self.first_step = self.step

    def charge(self, level: Level, since: float) -> float:
        """Charge the time since `since` to this level; return the current time."""
        now = perf_counter()
        self.costs[level] = self.costs.get(level, 0.0) + now - since
        return now

    def scale(self, share: float) -> None:
        """Take this share of what was timed, because in the rest of the time the machine ran something else."""
        self.training_seconds *= share
        self.loss_seconds *= share
        self.costs = {level: share * seconds for level, seconds in self.costs.items()}

    def pause_before(self, pass_start: float | None, usual: float) -> float:
        """Return the seconds of an evaluation, say, between the last step and the measured pass; 0 if it was short."""
        if pass_start is None or self.start is None:
            return 0.0
        pause = pass_start - self.start
        return pause if pause > MIN_PAUSE_STEPS * usual else 0.0

    def charge_slowdown(self, pass_start: float | None, usual: float) -> None:
        """Charge what hooks slowed down in the pass itself: the time beyond that of a usual step, without a pause."""
        self.training_seconds -= self.pause_before(pass_start, usual)
        slowdown = max(0.0, self.training_seconds - usual)
        self.costs[self.level] = self.costs.get(self.level, 0.0) + slowdown
        self.training_seconds = min(self.training_seconds, usual)

    def use_root_losses(self) -> None:
        """Take the loss of the step from its backward passes, unless it is known from elsewhere."""
        if not self.losses and self.root_losses:
            total = self.root_losses[0]
            for each in self.root_losses[1:]:
                total = total + each
            self.losses = [total]
        self.root_losses = []

    @property
    def ready(self) -> bool:
        """True if no measurement is still computed on a device."""
        return not any(map(is_on_device, self.pending()))

    def _norms(self) -> Iterator[Norms]:
        yield from self.parameters.norms()
        yield from () if self.block_moments is None else self.block_moments.norms()
        yield from () if self.raw_gradients is None else self.raw_gradients.norms()

    def pending(self) -> Iterator[Tensor]:
        """Everything measured that was not read yet. It is transferred at once, so that the host waits once."""
        numbers = (*self.losses, *self.unclipped, *self.rates)
        yield from (each for each in numbers if isinstance(each, Tensor))
        for norms in self._norms():
            yield from norms.pending()
        yield from () if self.sample is None else self.sample.pending()

    def receive(self, known: Known) -> None:
        """Take all pending numbers but those of the sample from what was transferred."""
        self.losses, self.unclipped = receive(self.losses, known), receive(self.unclipped, known)
        self.rates = receive(self.rates, known)
        for norms in self._norms():
            norms.receive(known)

    @property
    def watch_seconds(self) -> float:
        return sum(self.costs.values()) + self.loss_seconds

    def numbers(self, loss_scale: float | None) -> tuple[dict[str, float], Vectors]:
        """Return the scalars of the step and its vectors over parameters; call `receive` before."""
        scalars: dict[str, float] = {"step_seconds": self.seconds} if self.seconds else {}
        loss = mean_loss(self.losses)
        if loss is not None:
            scalars["loss"] = loss
        rate = largest(self.rates)
        if rate is not None:
            scalars["lr"] = rate
        vectors = self.parameters.vectors()
        for name, values in vectors.items():
            scalars[name] = total([each for each in values if not each < 0])
        share = clipped_share(self.unclipped, scalars.get("grad_norm"))
        if share is None and self.raw_gradients is not None and self.parameters.gradients:
            share = self.raw_gradients.clipped_share(self.parameters.last_gradient_norm())
        if share is not None:
            scalars["grad_clip"] = share
        if "grad_norm" in vectors:
            scalars["non_finite"] = sum(not math.isfinite(each) for each in vectors["grad_norm"])
        if loss_scale is not None:
            scalars["loss_scale"] = loss_scale
        return scalars | self.loop, vectors


# Closures given to an optimizer: they compute the gradients, and often the loss, during the step.

Call = tuple[tuple[Any, ...], dict[str, Any]]


def wrap_closure(call: Call, on_result: Callable[[Any], None]) -> Call | None:
    """Return the call with its closure wrapped so that `on_result` gets its first result; None without a closure."""
    args, kwargs = call
    closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
    if not callable(closure):
        return None
    wrapped = _with_callback(closure, on_result)
    if "closure" in kwargs:
        return args, kwargs | {"closure": wrapped}
    return (args[0], wrapped, *args[2:]), kwargs


def _with_callback(closure: Callable[[], Any], on_result: Callable[[Any], None]) -> Callable[[], Any]:
    is_first = [True]

    def run() -> Any:
        result = closure()
        if is_first:
            is_first.clear()
            on_result(result)
        return result

    return run
