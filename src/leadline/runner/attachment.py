"""The attachment to a program: find model, batch, loss and optimizers at its first step, check them, watch the rest."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from dataclasses import replace as replace_step
from pathlib import Path
from time import perf_counter
from typing import Any, Protocol

import torch
from msgspec.structs import replace
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from leadline.case import Case
from leadline.checks._diagnosis import check_case
from leadline.joint_optimizer import as_passed
from leadline.monitor.loop_calls import LoopListener, subscribe
from leadline.monitor.watch import Watch, start_watch
from leadline.records import Gap
from leadline.records.report import Report
from leadline.records.run import Alert
from leadline.records.update import MAX_REHEARSAL_STEPS
from leadline.runner.collectives import forbid_collectives, rank_and_world_size
from leadline.runner.program import ProgramStop
from leadline.runner.rates import at_full_rate
from leadline.runner.step_slice import NotAttributableError
from leadline.runner.tape import CallStart, Tape
from leadline.runner.tape_case import TapedStep, step_case
from leadline.tracer.restore import preserve_process_state
from leadline.tracer.sharded import is_shard
from leadline.tracer.trace import trace_structure

# Heuristic: steps after which an optimizer that has not stepped yet is no longer waited for.
MAX_FOLLOWED_STEPS = 16
# Heuristic: seconds that trial steps may take before the program goes on.
MAX_REHEARSAL_SECONDS = 60.0
# Heuristic: nearly all rehearsals are decided after so many steps; the longest take four times as many.
USUAL_REHEARSAL_PASSES = 65
# Derived: passes of a check without a rehearsal: one is traced, three measure the step, eight ask questions.
CHECK_PASSES = 12
# Derived: a backward pass does about twice the work of a forward pass.
FORWARDS_PER_PASS = 3

SHARDED = "its parameters are sharded over several processes, and a check runs in one"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """What is done with a program."""

    probes: bool = True
    rehearse: bool = True
    is_watched: bool = True
    """Whether the steps after the check are watched."""
    stops_after_check: bool = False
    is_strict: bool = False
    """Whether an error finding or alert stops the program."""
    target: str = ""
    """The path of the program, if it is a script."""
    store: Path | None = None
    budget: float = 0.01
    every: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundStep:
    """A step of the program: its Case if it could be found, and what is said about it."""

    number: int
    optimizers: tuple[Optimizer, ...]
    taped: TapedStep | None = None
    notes: tuple[str, ...] = ()


class Audience(Protocol):
    """Who is told what an attachment finds."""

    def checking(self, step: FoundStep, seconds: float) -> None:
        """A check begins that takes about this long."""

    def checked(self, step: FoundStep, report: Report) -> None: ...
    def not_checked(self, step: FoundStep, reason: str) -> None: ...
    def alerted(self, alert: Alert) -> None: ...
    def stepped(self, watch: Watch) -> None:
        """A step was watched."""

    def silenced(self) -> AbstractContextManager[None]:
        """Inside, what the program's code prints is dropped: it runs for Leadline, not for the program."""


Work = Callable[[Case], Any]


class Attachment(LoopListener):
    """Follows the training loop of this process. Its own errors never reach the program."""

    def __init__(self, settings: RunSettings, audience: Audience, work: Work | None = None) -> None:
        """`work` is done with the Case of the first step instead of a check."""
        self.settings, self.audience = settings, audience
        self.reports: list[Report] = []
        self.watch: Watch | None = None
        self.result: Any = None
        """What `work` returned."""
        self.has_worked = False
        self.error: Exception | None = None
        """What `work` raised."""
        self.trouble = ""
        """An error of Leadline itself, after which the program runs on its own."""
        self.steps = self.backward_passes = self.module_calls = 0
        self.reasons: list[str] = []
        """Why steps could not be checked."""
        self.is_closed = False
        self._work = work
        self._process, self._thread = os.getpid(), 0
        self._tape: Tape | None = Tape()
        self._call: CallStart | None = None
        self._call_start = self._pass_seconds = 0.0
        self._is_busy = False
        self._inside: Optimizer | None = None
        """The optimizer whose `step` is running."""
        self._scaled: dict[int, tuple[Tensor, Tensor]] = {}
        """By id of a scaled loss: itself and the loss."""
        self._losses: list[Tensor] = []
        """The losses of the backward passes since the last step."""
        self._group: list[Optimizer] = []
        """The optimizers that stepped since the last backward pass."""
        self._partners: dict[int, tuple[Optimizer, ...]] = {}
        """By id of the optimizer that steps first: those that step after the same backward passes."""
        self._done: set[int] = set()
        """Ids of optimizers whose step was checked, or could not be."""
        self._counts: dict[int, int] = {}
        """By id of an optimizer: the steps that it has made."""
        self._watched: set[int] = set()
        """Ids of the optimizers that the watch follows."""
        self._mark = 0
        """Calls on the tape when the last step ended."""
        self._to_watch: tuple[nn.Module, tuple[Optimizer, ...]] | None = None
        self._is_stopping = False
        self._subscription = subscribe(self)
        self._stopper = register_optimizer_step_pre_hook(self._stop)

    # What the program does.

    def before_call(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        tape = self._recording()
        if tape is None:
            return
        tape.pause()
        self._call = None
        if not tape.state.calls and not _is_training_call(module):
            return
        self._thread = self._thread or threading.get_ident()
        self.module_calls += 1
        self._call = CallStart.of_module(module, args, kwargs)
        self._call_start = perf_counter()

    def after_call(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
    ) -> None:
        tape, start = self._recording(), self._call
        if tape is None or start is None:
            return
        self._pass_seconds += perf_counter() - self._call_start
        self._call = None
        if start.has_grad or tape.knows_any(start.tensors):
            tape.add_module_call(module, args, kwargs, output, start)
        tape.run()

    def scaled(self, loss: Any, scaled: Any) -> None:
        if isinstance(loss, Tensor) and isinstance(scaled, Tensor) and not self._is_busy:
            self._scaled[id(scaled)] = scaled, loss

    def before_backward(self, roots: tuple[Tensor, ...]) -> None:
        if self._is_elsewhere():
            return
        self.backward_passes += 1
        if self._group and self._inside is None:
            self._partners[id(self._group[0])] = tuple(self._group)
            self._group = []
        losses = [self._scaled.get(id(root), (root, root))[1] for root in roots]
        self._losses += [loss.detach() for loss in losses if loss.numel() == 1]
        tape = self._recording()
        if tape is not None:
            tape.pause()
            for root in losses:
                tape.add_root(root)
        self._call_start = perf_counter()

    def after_backward(self, roots: tuple[Tensor, ...]) -> None:
        if self._is_elsewhere():
            return
        tape = self._recording()
        if tape is None:
            return
        self._pass_seconds += perf_counter() - self._call_start
        if self._inside is not None and id(self._inside) not in self._done:
            self._consider(self._inside, tape, is_closure=True)
        if self._tape is not None and tape.state.calls:
            tape.run()

    def before_step(self, optimizer: Optimizer) -> None:
        if self._is_elsewhere():
            return
        self._inside = optimizer
        self._group.append(optimizer)
        tape = self._recording()
        if tape is not None:
            tape.pause()
            if len(self._group) == 1 and tape.state.roots and id(optimizer) not in self._done:
                self._consider(optimizer, tape)
        self._feed(optimizer)

    def after_step(self, optimizer: Optimizer) -> None:
        if self._is_elsewhere():
            return
        self._inside = None
        self.steps += 1
        self._counts[id(optimizer)] = self._counts.get(id(optimizer), 0) + 1
        if self._losses:  # of a closure
            self._feed(optimizer)
        self._scaled.clear()
        self._end_step(optimizer)

    def failed(self, error: Exception) -> None:
        """Called by the publisher after an error of a method above; the program goes on without Leadline."""
        self._give_up(error)

    # What Leadline does.

    def _recording(self) -> Tape | None:
        """The tape if calls of this thread belong on it."""
        if self._tape is None or self._is_elsewhere():
            return None
        if self._thread and self._thread != threading.get_ident():
            return None
        return self._tape

    def _is_elsewhere(self) -> bool:
        """Whether what happens is not the program's own: a forked process, or a pass of Leadline."""
        return self._is_busy or os.getpid() != self._process

    def _consider(self, optimizer: Optimizer, tape: Tape, *, is_closure: bool = False) -> None:
        """Check the step that `optimizer` begins, unless it is not known yet which optimizers belong to it."""
        optimizers = self._partners.get(id(optimizer), (optimizer,) if is_closure else None)
        if optimizers is None:
            candidates = live_optimizers(tape.parameter_ids())
            optimizers = tuple(
                each for each in candidates if _has_gradient(each) and id(each) not in self._done
            )
            if len(optimizers) > 1:
                return  # at its next step it is known which of them step together
            optimizers = optimizers or (optimizer,)
        self._done.update(map(id, optimizers))
        self._is_busy = True
        try:
            with preserve_process_state():  # also what is imported now may draw random numbers
                self._check(optimizers, tape)
        except Exception as error:
            self._skip(
                FoundStep(number=self._number(optimizers), optimizers=optimizers),
                f"{type(error).__name__}: {error}",
            )
        finally:
            self._is_busy = False
            self._pass_seconds = 0.0

    def _check(self, optimizers: tuple[Optimizer, ...], tape: Tape) -> None:
        step = FoundStep(number=self._number(optimizers), optimizers=optimizers)
        rank, world_size = rank_and_world_size()
        called = called_modules(tape, optimizers)
        self._watch_later(called, optimizers)
        if rank:
            return
        if world_size > 1 and any(is_shard(each) for module in called for each in module.parameters()):
            self._skip(step, SHARDED)
            return
        try:
            taped = step_case(tape.state, as_passed(optimizers))
        except NotAttributableError as reason:
            self._skip(step, str(reason))
            return
        if self._to_watch is not None:
            self._to_watch = taped.watched, optimizers
        step = replace_step(step, taped=taped)
        if self._work is None:
            self._report(step, taped)
        else:
            self._do_work(step, taped.case)
        self._is_stopping |= self.settings.stops_after_check

    def _number(self, optimizers: Sequence[Optimizer]) -> int:
        """The number of the step that these optimizers make now, from 1."""
        return self._counts.get(id(optimizers[0]), 0) + 1

    def _skip(self, step: FoundStep, reason: str) -> None:
        self.reasons.append(reason)
        self.audience.not_checked(step, reason)

    def _do_work(self, step: FoundStep, case: Case) -> None:
        work, self._work = self._work, None
        self.audience.checking(step, 0.0)
        try:
            with self._alone(step.optimizers):
                self.result = None if work is None else work(case)
            self.has_worked = True
        except Exception as error:
            self.error = error

    def _report(self, step: FoundStep, taped: TapedStep) -> None:
        seconds = self._seconds_of_pass(taped)
        is_long = seconds * USUAL_REHEARSAL_PASSES > MAX_REHEARSAL_SECONDS
        rehearse = self.settings.rehearse and not is_long
        affordable = int(MAX_REHEARSAL_SECONDS / seconds) if seconds else MAX_REHEARSAL_STEPS
        self.audience.checking(step, seconds * (USUAL_REHEARSAL_PASSES if rehearse else CHECK_PASSES))
        with self._alone(step.optimizers) as notes:
            report = check_case(
                taped.case,
                rehearse=rehearse and min(affordable, MAX_REHEARSAL_STEPS),
                probes=self.settings.probes,
            )
        if self.settings.rehearse and is_long:
            gap = Gap(what="trial steps", why=f"they would take more than {MAX_REHEARSAL_SECONDS:.0f} s")
            report = replace(report, coverage=replace(report.coverage, gaps=(*report.coverage.gaps, gap)))
        report = replace(report, target=self.settings.target)
        self.reports.append(report)
        self.audience.checked(replace_step(step, notes=tuple(notes)), report)
        self._is_stopping |= self.settings.is_strict and report.verdict == "fails"

    def _seconds_of_pass(self, taped: TapedStep) -> float:
        """Seconds of one pass of a check; if the real pass was slow, measured again: it may have been compiled."""
        seconds = self._pass_seconds / max(1, taped.micro_batches)
        if seconds * USUAL_REHEARSAL_PASSES > MAX_REHEARSAL_SECONDS:
            with self._alone(()):
                start = perf_counter()
                trace_structure(taped.case)
            seconds = min(seconds, FORWARDS_PER_PASS * (perf_counter() - start))
        return seconds

    @contextmanager
    def _alone(self, optimizers: Sequence[Optimizer]) -> Iterator[list[str]]:
        """Run passes of Leadline: nothing that the program would notice, at the rate that its schedule leads to."""
        with (
            self.audience.silenced(),
            forbid_collectives(),
            freeze_others(optimizers),
            at_full_rate(optimizers) as notes,
        ):
            yield notes

    def _watch_later(self, modules: Sequence[nn.Module], optimizers: tuple[Optimizer, ...]) -> None:
        if modules and self._to_watch is None and self.watch is None and self.settings.is_watched:
            self._to_watch = modules[0], optimizers

    def _end_step(self, optimizer: Optimizer) -> None:
        tape = self._tape
        if tape is not None:
            tape.end_step(keep_from=self._mark)
            self._mark = len(tape.state.calls)
            used = tape.parameter_ids()
            waiting = (
                [each for each in live_optimizers(used) if id(each) not in self._done] if used else [None]
            )
            if not waiting or self.steps >= MAX_FOLLOWED_STEPS:
                tape.pause()
                self._tape = None
        if self._to_watch is not None and optimizer is self._to_watch[1][-1]:
            with preserve_process_state():
                self._start_watch(*self._to_watch)

    def _start_watch(self, model: nn.Module, optimizers: tuple[Optimizer, ...]) -> None:
        self._to_watch = None
        try:
            self.watch = start_watch(
                model,
                optimizers,
                store=self.settings.store,
                budget=self.settings.budget,
                every=self.settings.every,
                on_alert=self._alert,
            )
            self._watched = {id(each) for each in optimizers}
        except Exception as error:
            self.trouble = f"the steps are not watched: {type(error).__name__}: {error}"

    def _feed(self, optimizer: Optimizer) -> None:
        """Give the watch the loss of the step: the sum over its backward passes, whose gradients add up."""
        losses, self._losses = self._losses, []
        if self.watch is None or not losses or id(optimizer) not in self._watched or self.watch.closed:
            return
        total = (
            losses[0]
            if len(losses) == 1
            else torch.stack([each.reshape(()).float() for each in losses]).sum()
        )
        self.watch.loss(total)
        self.audience.stepped(self.watch)

    def _alert(self, alert: Alert) -> None:
        self.audience.alerted(alert)
        if self.settings.is_strict and alert.severity == "error" and alert.state == "raised":
            self._is_stopping = True

    def _stop(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if self._is_stopping and not self._is_elsewhere():
            raise ProgramStop(0)

    def _give_up(self, error: Exception) -> None:
        self.trouble = self.trouble or f"{type(error).__name__}: {error}"
        if self._tape is not None:
            self._tape.pause()
            self._tape = None

    def close(self, error: BaseException | None = None) -> None:
        """Detach from the program; `error` is what ended it."""
        if os.getpid() != self._process or self.is_closed:
            return
        self.is_closed = True
        self._subscription.close()
        self._stopper.remove()
        if self._tape is not None:
            self._tape.pause()
            self._tape = None
        if self.watch is not None:
            self.watch.__exit__(None if error is None else type(error), error, None)


def live_optimizers(parameter_ids: Collection[int] | None = None) -> list[Optimizer]:
    """The optimizers of this process, without the wrappers of libraries around them.

    If ids of parameters are given, only those that hold one of them: other loops of the process do not count.
    """
    optimizers = [
        each
        for each in gc.get_objects()
        if issubclass(type(each), Optimizer) and "_optimizer_step_pre_hooks" in vars(each)
    ]
    if parameter_ids is None:
        return optimizers
    return [
        each
        for each in optimizers
        if any(id(parameter) in parameter_ids for group in each.param_groups for parameter in group["params"])
    ]


@contextmanager
def freeze_others(optimizers: Sequence[Optimizer]) -> Iterator[None]:
    """Freeze what only other optimizers train: the gradient of a GAN's generator passes through a discriminator."""
    own = {id(each) for each in _parameters_of(optimizers)}
    frozen = [
        parameter
        for parameter in _parameters_of(live_optimizers())
        if parameter.requires_grad and parameter.is_leaf and id(parameter) not in own
    ]
    try:
        for parameter in frozen:
            parameter.requires_grad = False
        yield
    finally:
        for parameter in frozen:
            parameter.requires_grad = True


def _parameters_of(optimizers: Iterable[Optimizer]) -> Iterator[Tensor]:
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            yield from group["params"]


def _has_gradient(optimizer: Optimizer) -> bool:
    return any(each.grad is not None for each in _parameters_of([optimizer]))


def _is_training_call(module: nn.Module) -> bool:
    return torch.is_grad_enabled() and any(each.requires_grad for each in module.parameters())


def called_modules(tape: Tape, optimizers: Sequence[Optimizer]) -> list[nn.Module]:
    """The modules that the program called and these optimizers train, as it calls them, the largest first."""
    held = {
        id(each) for optimizer in optimizers for group in optimizer.param_groups for each in group["params"]
    }
    modules = {id(call.called): call.called for call in tape.state.calls if call.called is not None}
    sizes = {
        key: sum(each.numel() for each in module.parameters() if id(each) in held)
        for key, module in modules.items()
    }
    return [modules[key] for key in sorted(sizes, key=lambda key: -sizes[key]) if sizes[key]]
