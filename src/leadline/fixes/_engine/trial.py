"""Train a copy for a short while: the same batches, seeds and number of steps for every candidate."""

from __future__ import annotations

import math
import random
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from leadline.case import Case, Inputs, Progress, describe, split_batch
from leadline.errors import CopyError, InputError
from leadline.fixes._engine.copy import copy_case
from leadline.joint_optimizer import needs_closure
from leadline.readings.update.step_hooks import suspend_step_hooks
from leadline.tracer.inputs import call_model, copy_batch, find_loss, trainable_leaves, unwrap
from leadline.tracer.names import index_model
from leadline.tracer.restore import hide_gradients, preserve_state
from leadline.tracer.shield import atomic_contextmanager


@dataclass(frozen=True, slots=True, kw_only=True)
class Batches:
    """At least one batch. The tensors are the user's: copy them before a model may write into them."""

    each: tuple[tuple[Inputs, Any], ...]

    def fresh(self, steps: int) -> bool:
        """Whether every step sees a different batch."""
        return len(self.each) >= steps

    def schedule(self, steps: int, seed: int) -> list[tuple[Inputs, Any]]:
        """A batch for each step: in their own order for seed 0, in a random order for any other seed."""
        count = len(self.each)
        order = list(range(count))
        if seed:
            order = torch.randperm(count, generator=torch.Generator().manual_seed(seed)).tolist()
        return [self.each[order[step % count]] for step in range(steps)]


def read_batches(case: Case, most: int) -> Batches:
    """At most `most` of the case's batches; if it has none, the one batch it was checked with.

    The case keeps what is read from an iterator (such as a generator), so that it can be read again.
    """
    if case.batches is None:
        return Batches(each=((case.inputs, case.targets),))
    batches = tuple(split_batch(item, case) for item in islice(case.batches, most))
    if not batches:
        raise InputError(
            expected="at least one batch in `batches`",
            got=f"{describe(case.batches)}, which is empty",
            fix="pass a list or DataLoader of (inputs, targets), or omit `batches`",
        )
    return Batches(each=batches)


def with_batch(case: Case, batch: tuple[Inputs, Any]) -> Case:
    """The case with this batch as its inputs and targets."""
    return replace(case, inputs=batch[0], targets=batch[1], batches=None)


# A time budget: "60s", "2m" or a number of seconds, and how much of it is left. On a CPU it is processor time of this
# thread, so that a busy machine does not change the result; other devices work while this thread waits.

Clock = Callable[[], float]
BudgetInput = float | str | None
# Derived: seconds per unit of time.
UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_BUDGET_TEXT = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*([a-z]*)\s*")


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeBudget:
    """Time that runs from `start`. New work begins only while some is left; a step that has begun is finished."""

    seconds: float | None
    """None if there is no limit."""
    clock: Clock
    start: float

    @property
    def unit(self) -> str:
        """What the seconds count."""
        return "processor time" if self.clock is time.thread_time else "time"

    @property
    def spent(self) -> float:
        return self.clock() - self.start

    @property
    def left(self) -> float:
        return math.inf if self.seconds is None else self.seconds - self.spent

    @property
    def over(self) -> bool:
        return self.left <= 0


def clock_for(case: Case) -> Clock:
    """The clock that measures the work of this case."""
    on_cpu = all(each.device.type == "cpu" for each in unwrap(case.model).parameters())
    return time.thread_time if on_cpu else time.monotonic


def budget_of(given: BudgetInput, clock: Clock = time.thread_time) -> TimeBudget:
    """The budget that the user asked for, started now."""
    return TimeBudget(seconds=None if given is None else seconds_of(given), clock=clock, start=clock())


def seconds_of(given: float | str) -> float:
    """The seconds of a budget such as 60, "60s" or "2m"."""
    match = _BUDGET_TEXT.fullmatch(given.lower()) if isinstance(given, str) else None
    if match and match[2] in UNITS:
        seconds = float(match[1]) * UNITS[match[2]]
    elif isinstance(given, int | float) and not isinstance(given, bool):
        seconds = float(given)
    else:
        seconds = math.nan
    if seconds > 0:
        return seconds
    raise InputError(
        expected="a time budget: a number of seconds, or text such as '60s', '2m', '1h'",
        got=repr(given),
        fix="pass, for instance, budget=60; without a budget, the search has no time limit",
    )


# Trials: short trainings of copies, all with the same batches, seeds and number of steps.

# Heuristic: enough for a healthy network to leave its first loss, and little compared with any real training.
MAX_TRIAL_STEPS = 40

# Derived: the last quarter, over which losses are compared, then has at least three steps.
MIN_TRIAL_STEPS = 12

# Heuristic: a control, a confirmation of two runs of three times the length, and a dozen candidates.
PLANNED_TRIALS = 20

# Derived: the share of the planned trials that the confirmation takes.
CONFIRMATION_TRIALS = 6

# Cited: Kingma & Ba 2015, algorithm 1.
DEFAULT_LEARNING_RATE = 1e-3

Losses = tuple[float, ...]


class OutOfTimeError(Exception):
    """The budget ended in the middle of a trial. It never reaches users."""


@dataclass(slots=True, kw_only=True)
class Trials:
    """The trainings of one search. Models that are compared were trained by the same Trials."""

    batches: Batches
    budget: TimeBudget
    progress: Progress | None = None
    steps: int | None = None
    """Steps per run; set by the first run to what the budget allows for all planned runs."""
    pace: float = 0.0
    """Seconds per step."""
    length: float = 1
    """Default length of a run, as a multiple of `steps`."""
    total_steps: int = 0
    """Training steps so far, of all runs together."""

    @property
    def fresh(self) -> bool:
        """Whether each step sees a different batch."""
        return self.batches.fresh(self.steps or MAX_TRIAL_STEPS)

    @property
    def shortened(self) -> bool:
        """Whether the budget made the trials shorter."""
        return self.steps is not None and self.steps < MAX_TRIAL_STEPS

    @property
    def spare(self) -> float:
        """Seconds left beyond those reserved for the confirmation."""
        return self.budget.left - CONFIRMATION_TRIALS * (self.steps or MIN_TRIAL_STEPS) * self.pace

    def has_time(self) -> bool:
        return self.spare > 0

    def share(self, parts: int) -> float:
        """The remaining budget at which one of `parts` equal parts of the spare time will be spent."""
        return self.budget.left - self.spare / parts if self.budget.seconds is not None else 0.0

    def show(self, done: int, total: int, text: str) -> None:
        if self.progress is not None:
            self.progress(done, total, text)

    def run(
        self, case: Case, label: str, *, seed: int = 0, longer: float | None = None, finish: bool = False
    ) -> Losses:
        """Train a copy of the case and return the loss before each step. Stops after a non-finite loss.

        `longer` multiplies the usual number of steps. Raises OutOfTimeError if the budget ends first, unless `finish`
        is set. The model, optimizer and loss of the case itself are not trained; without an optimizer Adam is used.
        The state of random number generators is restored.
        """
        with _preserve(case):
            trained = copy_case(case)
            if trained.optimizer is None:
                trained = replace(trained, optimizer=default_optimizer(trained.model))
            _seed(seed)
            losses = []
            for loss in self._train(trained, label, seed, self.length if longer is None else longer):
                losses.append(loss)
                if self.budget.over and not finish:
                    raise OutOfTimeError
            _check_original(case)
        self.steps = self.steps or MAX_TRIAL_STEPS
        return tuple(losses)

    def _train(self, case: Case, label: str, seed: int, longer: float) -> Iterator[float]:
        for done, batch in enumerate(self.batches.schedule(round(longer * MAX_TRIAL_STEPS), seed)):
            total = round(longer * (self.steps or MAX_TRIAL_STEPS))
            if done >= total:
                return
            self.show(done, total, label)
            began = self.budget.clock()
            loss = train_step(case, batch)
            self.total_steps += 1
            yield loss
            if not math.isfinite(loss):
                return
            self._settle(self.budget.clock() - began, done)

    def _settle(self, seconds: float, done: int) -> None:
        """Set the steps of all runs from the time of the third step of the first run: the first two are slower."""
        if self.steps is not None or done != 2:
            return
        self.pace = seconds
        if self.budget.seconds is not None:
            fitting = self.budget.left / PLANNED_TRIALS / max(seconds, 1e-9)
            self.steps = int(min(max(fitting, MIN_TRIAL_STEPS), MAX_TRIAL_STEPS))


def default_optimizer(model: nn.Module) -> Optimizer:
    """The optimizer of a trial if the user passed none."""
    return torch.optim.Adam(
        [each for each in model.parameters() if each.requires_grad], lr=DEFAULT_LEARNING_RATE
    )


def train_step(case: Case, batch: tuple[Inputs, Any]) -> float:
    """Make one step of a plain training loop on a copy of the batch, and return the loss before it.

    After a non-finite loss no step is made.
    """
    now, optimizer = with_batch(case, copy_batch(batch)), _optimizer(case)

    def backward() -> Tensor:
        optimizer.zero_grad()
        with torch.enable_grad():
            loss = find_loss(call_model(now.model, now.inputs), now.loss, now.targets)
            loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    with suspend_step_hooks(optimizer), hide_gradients(trainable_leaves(batch)):
        if needs_closure(optimizer):
            return float(cast(Tensor, optimizer.step(backward)))  # type: ignore[arg-type]
        loss = backward().item()
        if math.isfinite(loss):
            optimizer.step()
    return loss


def _optimizer(case: Case) -> Optimizer:
    optimizer = case.joint_optimizer
    if optimizer is not None:
        return optimizer
    raise InputError(
        expected="an optimizer, because a trial is a training",
        got="none",
        fix="pass the optimizer you train with",
    )


@atomic_contextmanager
def _preserve(case: Case) -> Iterator[None]:
    """Restore the original too: a loss or a hook of the copy may still refer to it."""
    with ExitStack() as stack:
        stack.enter_context(preserve_state(case))
        if (
            "torch._dynamo" in sys.modules
        ):  # otherwise nothing is compiled, and importing dynamo takes a second
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        stack.enter_context(torch.inference_mode(mode=False))
        yield


def _check_original(case: Case) -> None:
    """Raise if the original got gradients: then the training did not train what was measured."""
    names = [
        named.names[0]
        for named in index_model(unwrap(case.model)).parameters.values()
        if named.item.grad is not None
    ]
    if names:
        raise CopyError(
            expected="a loss and hooks that use only the model they are called with",
            got=f"training a copy gave gradients to the original: {', '.join(names[:3])}",
            fix="do not let the loss, a hook or a lambda refer to the model or its parameters; "
            "make it a method of the model, or an nn.Module that holds what it needs; or pass the function that builds "
            "the case: leadline.fix(make_case)",
        )


def _seed(seed: int) -> None:
    torch.manual_seed(seed)
    random.seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed)
