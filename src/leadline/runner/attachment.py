"""The attachment to a program: find model, batch, loss and optimizers at its first step, check them, watch the rest."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from dataclasses import replace as replace_step
from time import perf_counter
from typing import Any, Protocol

import torch
from msgspec.structs import replace
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from leadline.case import Case
from leadline.checks import model_checks
from leadline.checks._diagnosis import check_case
from leadline.joint_optimizer import as_passed
from leadline.monitor.loop_calls import LoopListener, subscribe
from leadline.monitor.watch import Watch
from leadline.records import Gap
from leadline.records.report import Report
from leadline.records.run import Alert
from leadline.records.update import MAX_REHEARSAL_STEPS
from leadline.runner.collectives import forbid_collectives, rank_and_world_size
from leadline.runner.optimizers import (
    TrainedNetworks,
    called_modules,
    freeze_others,
    has_gradient,
    live_optimizers,
)
from leadline.runner.program import ProgramStop
from leadline.runner.rates import at_full_rate
from leadline.runner.step_slice import NotAttributableError
from leadline.runner.tape import CallStart, Tape, TapeState
from leadline.runner.tape_case import TapedStep, step_case
from leadline.runner.watches import ProgramWatches, WatchSettings
from leadline.tracer.live import is_in_backward
from leadline.tracer.restore import preserve_process_state
from leadline.tracer.sharded import is_shard
from leadline.tracer.trace import trace_structure

# Heuristic: steps after which an optimizer that has not stepped yet is no longer waited for.
MAX_FOLLOWED_STEPS = 16
# Heuristic: backward passes without an optimizer in the process, after which none is expected.
MAX_HAND_MADE_STEPS = 32
# Heuristic: seconds that trial steps may take before the program goes on.
MAX_REHEARSAL_SECONDS = 60.0
# Heuristic: nearly all rehearsals are decided after so many steps; the longest take four times as many.
USUAL_REHEARSAL_PASSES = 65
# Derived: passes of a check without a rehearsal: one is traced, three measure the step, eight ask questions.
CHECK_PASSES = 12
# Derived: a backward pass does about twice the work of a forward pass.
FORWARDS_PER_PASS = 3

SHARDED = "its parameters are sharded over several processes, and a check runs in one"
IN_BACKWARD = (
    "its optimizers step while gradients are still computed, so there is no moment before the step to check"
)


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
    watch: WatchSettings = field(default_factory=WatchSettings)


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundStep:
    """A step of the program: its Case if it could be found, and what is said about it."""

    number: int
    optimizers: tuple[Optimizer, ...]
    taped: TapedStep | None = None
    notes: tuple[str, ...] = ()


class Audience(Protocol):
    """Who is told what an attachment finds."""

    shows_progress: bool
    """Whether `stepped` does something."""

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
    """Follows the training loop of this process. Its own errors never reach the program.

    When the first step of every optimizer was found it rests, until an optimizer of another network is built.
    """

    resting_events = frozenset(("built",))

    def __init__(self, settings: RunSettings, audience: Audience, work: Work | None = None) -> None:
        """`work` is done with the Case of the first step instead of a check."""
        self.settings, self.audience = settings, audience
        self.reports: list[Report] = []
        self.result: Any = None
        """What `work` returned."""
        self.has_worked = False
        self.error: Exception | None = None  # what `work` raised
        self.trouble = ""  # an error of Leadline itself, after which the program runs on its own
        self.steps = self.backward_passes = self.module_calls = 0
        self.reasons: list[str] = []  # why steps could not be checked
        self.is_closed = False
        self._work = work
        self._process, self._thread = os.getpid(), 0
        self._tape: Tape | None = Tape()
        self._is_ending = False
        self._call: CallStart | None = None
        self._call_start = self._pass_seconds = 0.0
        self._is_busy = False
        self._inside: Optimizer | None = None
        """The optimizer whose `step` is running."""
        self._scaled: dict[int, tuple[Tensor, Tensor]] = {}
        """By id of a scaled loss: itself and the loss."""
        self._group: list[Optimizer] = []
        """The optimizers that stepped since the last backward pass."""
        self._early: list[Optimizer] = []
        """The optimizers that stepped within this backward pass, from hooks of their parameters."""
        self._partners: dict[int, tuple[Optimizer, ...]] = {}
        """By id of the optimizer that steps first: those that step after the same backward passes."""
        self._done: set[int] = set()
        """Ids of optimizers whose step was checked, or could not be."""
        self._counts: dict[int, int] = {}
        """By id of an optimizer: the steps that it has made."""
        self._networks = TrainedNetworks()
        self._follow_until = MAX_FOLLOWED_STEPS
        """The number of steps after which no optimizer is waited for."""
        self._mark = 0
        """Calls on the tape when the last step ended."""
        self._watches = ProgramWatches(settings.watch, self._alert)
        self._is_stopping = False
        self._subscription = subscribe(self)
        may_stop = settings.stops_after_check or settings.is_strict
        self._stoppers = [register_optimizer_step_pre_hook(self._stop)] if may_stop else []

    @property
    def watches(self) -> Sequence[Watch]:
        """One watch for each kind of step."""
        return self._watches.watches

    @property
    def watch(self) -> Watch | None:
        """The watch of the first kind of step."""
        return self.watches[0] if self.watches else None

    # What the program does.

    def before_call(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        tape = self._recording()
        if tape is None:
            return
        tape.pause()
        if self._is_ending:
            self._is_ending = False
            self._stop_following()
            return
        self._call = None
        if tape.forget_evaluation(module):
            self._mark = 0
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
        if self.backward_passes == MAX_HAND_MADE_STEPS and not self.steps and not live_optimizers():
            # The program changes its weights by hand. The tape ends at the next call of a module: `backward` runs
            # inside the tape, which cannot leave the stack of modes there.
            self._is_ending = True
        if self._group and self._inside is None:
            self._partners[id(self._group[0])] = tuple(self._group)
            self._group = []
        losses = [self._scaled.get(id(root), (root, root))[1] for root in roots]
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
        if self._early:
            self._leave_to_watch(tape)
        if self._inside is not None and id(self._inside) not in self._done:
            self._consider(self._inside, tape, is_closure=True)
        if self._tape is not None and tape.state.calls:
            tape.run()

    def before_step(self, optimizer: Optimizer) -> None:
        if self._is_elsewhere():
            return
        if is_in_backward():
            self._early.append(optimizer)
            return
        self._inside = optimizer
        self._group.append(optimizer)
        tape = self._recording()
        if tape is not None:
            tape.pause()
            if len(self._group) == 1 and tape.state.roots and id(optimizer) not in self._done:
                self._consider(optimizer, tape)

    def after_step(self, optimizer: Optimizer) -> None:
        if self._is_elsewhere():
            return
        if self.is_resting:
            self._show_progress()
            return
        self.steps += 1
        self._counts[id(optimizer)] = self._counts.get(id(optimizer), 0) + 1
        if is_in_backward():
            return
        self._inside = None
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
                each for each in candidates if has_gradient(each) and id(each) not in self._done
            )
            if len(optimizers) > 1:
                return  # at its next step it is known which of them step together
            optimizers = optimizers or (optimizer,)
        self._done.update(map(id, optimizers))
        self._networks.add(optimizers)
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
        if rank:
            self._watch_later(called[:1], optimizers, tape)
            return
        if world_size > 1 and any(is_shard(each) for module in called for each in module.parameters()):
            self._watch_later(called[:1], optimizers, tape)
            self._skip(step, SHARDED)
            return
        try:
            taped = step_case(tape.state, as_passed(optimizers))
        except NotAttributableError as reason:
            self._watch_later(called[:1], optimizers, tape)
            self._skip(step, str(reason))
            return
        self._watch_later([taped.watched], optimizers, tape)
        step = replace_step(step, taped=taped)
        if self._work is None:
            self._report(step, taped)
        else:
            self._do_work(step, taped.case)
        self._is_stopping |= self.settings.stops_after_check

    def _leave_to_watch(self, tape: Tape) -> None:
        """Say why a step that was made within the backward pass is not checked, and watch the next ones."""
        optimizers, self._early = tuple(dict.fromkeys(self._early)), []
        if id(optimizers[0]) not in self._done:
            self._done.update(map(id, optimizers))
            self._networks.add(optimizers)
            self._watch_later(called_modules(tape, optimizers)[:1], optimizers, tape)
            self._skip(FoundStep(number=self._counts[id(optimizers[0])], optimizers=optimizers), IN_BACKWARD)
        self._end_step(optimizers[-1])

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
        # Half of the time is left for the steps of the comparison with a plain recipe.
        affordable = int(MAX_REHEARSAL_SECONDS / 2 / seconds) if seconds else MAX_REHEARSAL_STEPS
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
        if report.verdict == "trains" and report.profile.rehearsal is not None:
            found = {each.code for each in report.findings if each.severity != "info"}
            refuted = {each.code for each in model_checks() if each.refuted_by} - found
            self._watches.refute(step.optimizers, refuted)
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

    def _watch_later(
        self, modules: Sequence[nn.Module], optimizers: tuple[Optimizer, ...], tape: Tape
    ) -> None:
        if modules and self.settings.is_watched:
            losses = [root.tensor for root in tape.state.roots if root.tensor.numel() == 1]
            loss = sum(float(each.detach()) for each in losses) if losses else None
            self._watches.plan(modules[0], optimizers, loss)

    def _end_step(self, optimizer: Optimizer) -> None:
        tape = self._tape
        self._watches.start_after(optimizer)
        self.trouble = self.trouble or self._watches.trouble
        if tape is None:
            return
        tape.end_step(keep_from=self._mark)
        self._mark = len(tape.state.calls)
        used = tape.parameter_ids()
        waiting = [each for each in live_optimizers(used) if id(each) not in self._done] if used else [None]
        if not waiting or self.steps >= self._follow_until:
            self._stop_following()

    def _stop_following(self) -> None:
        """Rest until another network is trained."""
        if self._tape is not None:
            self._tape.pause()
            if self._tape.is_handling:  # an optimizer that steps inside `backward`
                self._is_ending = True
                return
            self._tape = None
        if self.audience.shows_progress:
            self.resting_events |= {"after_step"}
        self.rest()
        self.seconds = 0.0  # a check is not part of watching

    def _show_progress(self) -> None:
        watch = self.watch
        if watch is not None:
            self.audience.stepped(watch)
            watch.charge(self.seconds)
            self.seconds = 0.0

    def built(self, optimizer: Optimizer) -> None:
        """Follow the next steps if another network will be trained by this optimizer."""
        if self.is_resting and not self._is_elsewhere() and self._networks.is_new(optimizer):
            self._tape, self._mark, self._thread, self._group = Tape(), 0, 0, []
            self._follow_until = self.steps + MAX_FOLLOWED_STEPS
            self.follow()

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
            self._tape.pause()  # inside `backward` it stays on the stack, and passes calls on until it is closed
            self._tape.state = TapeState()

    def close(self, error: BaseException | None = None) -> None:
        """Detach from the program; `error` is what ended it."""
        if os.getpid() != self._process or self.is_closed:
            return
        self.is_closed = True
        self._subscription.close()
        for each in self._stoppers:
            each.remove()
        if self._tape is not None:
            self._tape.pause()
            self._tape = None
        self._watches.close(error)


def _is_training_call(module: nn.Module) -> bool:
    return torch.is_grad_enabled() and any(each.requires_grad for each in module.parameters())
