"""The attachment to a program: find model, batch, loss and optimizers at its first step, check them, watch the rest."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from dataclasses import replace as replace_step
from time import perf_counter
from typing import Any

import torch
from msgspec.structs import replace
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from leadline.case import Case
from leadline.checks import model_checks
from leadline.joint_optimizer import as_passed
from leadline.monitor.loop_calls import subscribe
from leadline.monitor.loop_listener import LoopListener
from leadline.monitor.watch import Watch
from leadline.records.report import Report
from leadline.records.run import Alert
from leadline.runner.collectives import rank_and_world_size
from leadline.runner.gathered_step import GatheredStep, can_gather
from leadline.runner.optimizers import (
    TrainedNetworks,
    called_modules,
    has_gradient,
    live_optimizers,
)
from leadline.runner.program import ProgramStop
from leadline.runner.step_check import Audience, FoundStep, alone, check_step, seconds_of_pass
from leadline.runner.step_slice import NotAttributableError
from leadline.runner.tape import CallStart, Tape, TapeState
from leadline.runner.tape_case import TapedStep, step_case
from leadline.runner.watches import ProgramWatches, WatchSettings
from leadline.tracer.live import is_in_backward
from leadline.tracer.restore import preserve_process_state
from leadline.tracer.sharded import is_shard

# Heuristic: steps within which every network that a program trains in turn has its first one.
MAX_TURNS = 8
# Heuristic: steps after which an optimizer that has not stepped yet is no longer waited for.
MAX_FOLLOWED_STEPS = 16
# Heuristic: backward passes without an optimizer in the process, after which none is expected.
MAX_HAND_MADE_STEPS = 32
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
    batches: int = 1
    """The check uses the batches of so many steps: one can be learned by heart."""
    stops_after_check: bool = False
    is_strict: bool = False
    """Whether an error finding or alert stops the program."""
    target: str = ""
    """The path of the program, if it is a script."""
    watch: WatchSettings = field(default_factory=WatchSettings)


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
        self._gathering: dict[int, tuple[FoundStep, GatheredStep]] = {}
        """By id of the optimizer that steps first: a first step that waits for more batches."""
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
            is_open = id(optimizer) not in self._done or id(optimizer) in self._gathering
            if len(self._group) == 1 and tape.state.roots and is_open:
                self._consider(optimizer, tape)

    def after_step(self, optimizer: Optimizer) -> None:
        if self._is_elsewhere():
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
        if id(optimizer) in self._gathering:
            step, gathered = self._gathering[id(optimizer)]
            with self._leadline_works(step.optimizers):
                self._gather(gathered, step, tape)
            return
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
        with self._leadline_works(optimizers):
            self._check(optimizers, tape, can_wait=not is_closure)

    @contextmanager
    def _leadline_works(self, optimizers: tuple[Optimizer, ...]) -> Iterator[None]:
        """What is computed inside is not the program's; an error of it is a step that could not be checked."""
        self._is_busy = True
        try:
            with preserve_process_state():  # also what is imported now may draw random numbers
                yield
        except Exception as error:
            self._skip(
                FoundStep(number=self._number(optimizers), optimizers=optimizers),
                f"{type(error).__name__}: {error}",
            )
        finally:
            self._is_busy = False
            self._pass_seconds = 0.0

    def _check(self, optimizers: tuple[Optimizer, ...], tape: Tape, *, can_wait: bool) -> None:
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
        # Only trial steps need more than one batch.
        wants_more = self.settings.rehearse and self.settings.batches > 1
        if can_wait and wants_more and can_gather(taped, optimizers):
            gathered = GatheredStep(taped, optimizers, self.settings.batches, self._pass_seconds)
            self._watches.refute(optimizers, refutable_codes())  # until it is known what trial steps say
            self._gathering[id(optimizers[0])] = step, gathered
        else:
            self._treat(step, taped, taped.case)

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

    def _gather(self, gathered: GatheredStep, step: FoundStep, tape: Tape) -> None:
        """Keep the batch of this step for the check of the first one, and make the check if that was the last."""
        try:
            taped = step_case(tape.state, as_passed(step.optimizers))
            goes_on = gathered.add(taped, self._pass_seconds)
        except NotAttributableError:
            goes_on = False
        if not goes_on or gathered.is_complete:
            self._conclude(id(step.optimizers[0]))

    def _conclude(self, key: int) -> None:
        """Check the step of which batches were gathered."""
        step, gathered = self._gathering.pop(key)
        self._pass_seconds = gathered.pass_seconds
        with gathered.case() as case:
            self._treat(step, gathered.taped, case)

    def _conclude_all(self) -> None:
        for key in list(self._gathering):
            with self._leadline_works(self._gathering[key][0].optimizers):
                self._conclude(key)

    def _treat(self, step: FoundStep, taped: TapedStep, case: Case) -> None:
        """Check the case, or do with it what else is to be done."""
        if self._work is None:
            self._report(step, taped, case)
        else:
            self._do_work(step, case)
        self._is_stopping |= self.settings.stops_after_check

    def _do_work(self, step: FoundStep, case: Case) -> None:
        work, self._work = self._work, None
        self.audience.checking(step, 0.0)
        try:
            with alone(self.audience, step.optimizers):
                self.result = None if work is None else work(case)
            self.has_worked = True
        except Exception as error:
            self.error = error

    def _report(self, step: FoundStep, taped: TapedStep, case: Case) -> None:
        settings = self.settings
        seconds = seconds_of_pass(taped, self._pass_seconds, self.audience)
        report, notes = check_step(
            step, case, self.audience, seconds, rehearse=settings.rehearse, probes=settings.probes
        )
        is_refuting = report.verdict == "trains" and report.profile.rehearsal is not None
        found = {each.code for each in report.findings if each.severity != "info"}
        self._watches.refute(step.optimizers, refutable_codes() - found if is_refuting else ())
        report = replace(report, target=settings.target)
        self.reports.append(report)
        self.audience.checked(replace_step(step, notes=notes), report)
        self._is_stopping |= settings.is_strict and report.verdict == "fails"

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
        if not waiting and self.steps <= MAX_TURNS:  # another network may have its turn only now
            waiting = [each for each in live_optimizers() if self._networks.is_new(each)]
        if self.steps >= self._follow_until:
            self._conclude_all()
        if not (waiting or self._gathering) or self.steps >= self._follow_until:
            self._stop_following()

    def _stop_following(self) -> None:
        """Rest until another network is trained."""
        if self._tape is not None:
            self._tape.pause()
            if self._tape.is_handling:  # an optimizer that steps inside `backward`
                self._is_ending = True
                return
            self._tape = None
        if self.audience.shows_progress and self.watch is not None:
            self.watch.follow_progress(self.audience.stepped)
        self.rest()
        self.seconds = 0.0  # a check is not part of watching

    def built(self, optimizer: Optimizer) -> None:
        """Follow the next steps if another network will be trained by this optimizer; a copy is not checked again."""
        if self._is_elsewhere():
            return
        self._done.discard(id(optimizer))  # the id of one that is gone
        if self._networks.is_copy(optimizer):
            self._done.add(id(optimizer))
        elif self.is_resting and self._networks.is_new(optimizer):
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
        if not isinstance(error, KeyboardInterrupt):
            self._conclude_all()
        self._subscription.close()
        for each in self._stoppers:
            each.remove()
        if self._tape is not None:
            self._tape.pause()
            self._tape = None
        self._watches.close(error)


def refutable_codes() -> set[str]:
    """The checks whose findings trial steps can refute."""
    return {each.code for each in model_checks() if each.refuted_by}


def _is_training_call(module: nn.Module) -> bool:
    return torch.is_grad_enabled() and any(each.requires_grad for each in module.parameters())
