"""A short training of a copy: the same batches, seeds and number of steps for every candidate."""

from __future__ import annotations

import math
import random
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from leadline.case import Case, Inputs, Progress, describe
from leadline.errors import InputError
from leadline.fixes._engine.copy import twin
from leadline.readings.update.optimizer_state import suspend_step_hooks
from leadline.readings.update.probe import copy_batch, needs_closure
from leadline.tracer.inputs import call_model, find_loss, unwrap
from leadline.tracer.names import index_model
from leadline.tracer.restore import preserve_state


@dataclass(frozen=True, slots=True, kw_only=True)
class Batches:
    """At least one batch. Its tensors are the user's own: copy them before a model may write into them."""

    each: tuple[tuple[Inputs, Any], ...]

    def fresh(self, steps: int) -> bool:
        """Every step sees another batch."""
        return len(self.each) >= steps

    def schedule(self, steps: int, seed: int) -> list[tuple[Inputs, Any]]:
        """A batch for each step: in the order in which they came for seed 0, in another for any other seed."""
        count = len(self.each)
        order = list(range(count))
        if seed:
            order = torch.randperm(count, generator=torch.Generator().manual_seed(seed)).tolist()
        return [self.each[order[step % count]] for step in range(steps)]


def read_batches(case: Case, most: int) -> Batches:
    """At most `most` of the case's batches; the one it is judged with if it has no others.

    An iterator (a generator, say) is read ahead and cannot be put back: give a list or a DataLoader to keep it.
    """
    if case.batches is None:
        return Batches(each=((case.inputs, case.targets),))
    found = tuple(_batch(item, case) for item in islice(iter(case.batches), most))
    if not found:
        raise InputError(
            expected="at least one batch in `batches`",
            got=f"{describe(case.batches)} that gives none",
            fix="pass a list or DataLoader of (inputs, targets), or leave it out",
        )
    return Batches(each=found)


def with_batch(case: Case, batch: tuple[Inputs, Any]) -> Case:
    return replace(case, inputs=batch[0], targets=batch[1], batches=None)


def _batch(item: Any, case: Case) -> tuple[Inputs, Any]:
    """Inputs and targets of a batch as loaders give them: a pair, or inputs alone where the case has no targets."""
    if isinstance(item, list | tuple) and len(item) == 2 and not _is_inputs(item, case):
        return _inputs(item[0]), item[1]
    if case.targets is None and (isinstance(item, Tensor | Mapping) or _is_inputs(item, case)):
        return _inputs(item), None
    if case.targets is None and isinstance(item, list | tuple) and len(item) == 1:
        return _inputs(item[0]), None
    raise InputError(
        expected="batches as pairs of (inputs, targets), or as inputs alone for a case without targets",
        got=describe(item),
        fix="wrap the loader: batches=[(inputs, targets) for ... in loader]",
    )


def _is_inputs(item: Any, case: Case) -> bool:
    """It looks like the case's own positional arguments, and the case has no targets that could be its second half."""
    alike = isinstance(case.inputs, tuple) and isinstance(item, list | tuple)
    return case.targets is None and alike and len(item) == len(case.inputs)


def _inputs(item: Any) -> Inputs:
    found: Inputs = tuple(item) if isinstance(item, list) else item
    return found


# A budget of time: "60s", "2m" or a number of seconds, and how much of it is left.

Clock = Callable[[], float]
Given = float | str | None
UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_WRITTEN = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*([a-z]*)\s*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Runs from when it was made. Work is asked for only while there is time; a step that has begun is finished."""

    seconds: float | None
    """None: as long as it takes."""
    clock: Clock
    start: float

    @property
    def spent(self) -> float:
        return self.clock() - self.start

    @property
    def left(self) -> float:
        return math.inf if self.seconds is None else self.seconds - self.spent

    @property
    def over(self) -> bool:
        return self.left <= 0


def budget_of(given: Given, clock: Clock = time.monotonic) -> Budget:
    """The budget that a user means, begun now."""
    return Budget(seconds=None if given is None else seconds_of(given), clock=clock, start=clock())


def seconds_of(given: float | str) -> float:
    found = _WRITTEN.fullmatch(given.lower()) if isinstance(given, str) else None
    if found and found[2] in UNITS:
        seconds = float(found[1]) * UNITS[found[2]]
    elif isinstance(given, int | float) and not isinstance(given, bool):
        seconds = float(given)
    else:
        seconds = math.nan
    if seconds > 0:
        return seconds
    raise InputError(
        expected="a budget of time: seconds as a number, or as text such as '60s', '2m', '1h'",
        got=repr(given),
        fix="pass, for instance, budget=60; without one, the search takes as long as it takes",
    )


# Training a copy for a short while: the same batches, seeds and number of steps for everyone who takes part.

MOST_STEPS = 40  # ours: enough for a healthy network to leave its first loss, little beside any real training
LEAST_STEPS = 12  # derived: the last quarter, over which losses are compared, has three steps at least
TRIALS_WANTED = (
    20  # ours: a control, a confirmation of two runs of three times the length, and a dozen candidates
)
CONFIRMATION = 6  # derived: what of these is kept back for the confirmation
DEFAULT_RATE = 1e-3  # cited: Kingma & Ba 2015, algorithm 1

Losses = tuple[float, ...]


class OutOfTimeError(Exception):
    """The budget ended in the middle of a trial; never seen by users."""


@dataclass(slots=True, kw_only=True)
class Trials:
    """One way of training for all: whoever is compared was trained by the same one of these."""

    batches: Batches
    budget: Budget
    progress: Progress | None = None
    steps: int | None = None
    """Decided by the first run: as many as the budget allows for all runs that are to come."""

    pace: float = 0.0
    """Seconds that a step takes."""
    length: float = 1
    """How many times as many steps as `steps` a run makes that does not say otherwise."""
    made: int = 0
    """Steps of training so far, all runs together."""

    @property
    def fresh(self) -> bool:
        """Each step saw another batch."""
        return self.batches.fresh(self.steps or MOST_STEPS)

    @property
    def hurried(self) -> bool:
        """The budget has made trials shorter."""
        return self.steps is not None and self.steps < MOST_STEPS

    @property
    def spare(self) -> float:
        """Seconds that are left for more than to confirm what has been found."""
        return self.budget.left - CONFIRMATION * (self.steps or LEAST_STEPS) * self.pace

    def has_time(self) -> bool:
        return self.spare > 0

    def share(self, parts: int) -> float:
        """What is left of the budget when one of so many parts of the spare time is spent."""
        return self.budget.left - self.spare / parts if self.budget.seconds is not None else 0.0

    def show(self, done: int, total: int, text: str) -> None:
        if self.progress is not None:
            self.progress(done, total, text)

    def run(
        self, case: Case, label: str, *, seed: int = 0, longer: float | None = None, finish: bool = False
    ) -> Losses:
        """Loss before each step of a copy of the case. Stops after a loss that is not a finite number.

        `longer` is how many times as many steps as usual. Raises OutOfTimeError if the budget ends first, unless it is
        to `finish`. The model, optimiser and loss of the case are copied and not trained; without an optimiser Adam is
        used. Random numbers are as before.
        """
        with _lent(case):
            trained = twin(case)
            if trained.optimizer is None:
                trained = replace(trained, optimizer=default_optimizer(trained.model))
            _seed(seed)
            losses = []
            for loss in self._train(trained, label, seed, self.length if longer is None else longer):
                losses.append(loss)
                if self.budget.over and not finish:
                    raise OutOfTimeError
            _check_own(case)
        self.steps = self.steps or MOST_STEPS
        return tuple(losses)

    def _train(self, case: Case, label: str, seed: int, longer: float) -> Iterator[float]:
        for done, batch in enumerate(self.batches.schedule(round(longer * MOST_STEPS), seed)):
            total = round(longer * (self.steps or MOST_STEPS))
            if done >= total:
                return
            self.show(done, total, label)
            began = self.budget.clock()
            loss = train_step(case, batch)
            self.made += 1
            yield loss
            if not math.isfinite(loss):
                return
            self._settle(self.budget.clock() - began, done)

    def _settle(self, seconds: float, done: int) -> None:
        """How many steps all runs make, from what the third step of the first run took: the first are slower."""
        if self.steps is not None or done != 2:
            return
        self.pace = seconds
        if self.budget.seconds is not None:
            fitting = self.budget.left / TRIALS_WANTED / max(seconds, 1e-9)
            self.steps = int(min(max(fitting, LEAST_STEPS), MOST_STEPS))


def default_optimizer(model: nn.Module) -> Optimizer:
    """What a trial uses if the user passed none."""
    return torch.optim.Adam([each for each in model.parameters() if each.requires_grad], lr=DEFAULT_RATE)


def train_step(case: Case, batch: tuple[Inputs, Any]) -> float:
    """One step as a plain training loop makes it, on a copy of the batch; the loss before it.

    After a loss that is not a finite number no step is made.
    """
    now, optimizer = with_batch(case, copy_batch(batch)), _optimizer(case)

    def backward() -> Tensor:
        optimizer.zero_grad()
        with torch.enable_grad():
            loss = find_loss(call_model(now.model, now.inputs), now.loss, now.targets)
            loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    with suspend_step_hooks(optimizer):
        if needs_closure(optimizer):
            return float(cast(Tensor, optimizer.step(backward)))  # type: ignore[arg-type]
        loss = backward().item()
        if math.isfinite(loss):
            optimizer.step()
    return loss


def _optimizer(case: Case) -> Optimizer:
    if case.optimizer is not None:
        return case.optimizer
    raise InputError(
        expected="an optimiser, for a trial is training",
        got="none",
        fix="pass the optimiser you train with",
    )


@contextmanager
def _lent(case: Case) -> Iterator[None]:
    """The case itself is guarded too: a loss or a hook may hold on to the original behind the copy's back."""
    lent = [index_model(unwrap(case.model))]
    if isinstance(case.loss, nn.Module):
        lent.append(index_model(case.loss))
    with ExitStack() as stack:
        stack.enter_context(preserve_state(lent))
        if "torch._dynamo" in sys.modules:  # else nothing is compiled, and importing dynamo takes a second
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        stack.enter_context(torch.inference_mode(mode=False))
        yield


def _check_own(case: Case) -> None:
    """Raise if gradients went to the original: then what was trained is not what was measured."""
    strangers = [
        named.names[0]
        for named in index_model(unwrap(case.model)).parameters.values()
        if named.item.grad is not None
    ]
    if strangers:
        raise InputError(
            expected="a model and a loss that use the model they are called with",
            got=f"gradients of a copy that went to the original: {', '.join(strangers[:3])}",
            fix="do not let the loss, a hook or a lambda hold on to the model or its parameters; "
            "make it a method of the model, or an nn.Module that holds what it needs",
        )


def _seed(seed: int) -> None:
    torch.manual_seed(seed)
    random.seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed)
