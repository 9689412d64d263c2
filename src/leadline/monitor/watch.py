"""The watch: two hooks on each optimizer, which measure a training run and are removed in every case."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import warnings
import weakref
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar, cast

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from leadline.checks._history import History
from leadline.checks._timeline import first_cause, render_timeline
from leadline.errors import AlertError, InputError
from leadline.monitor.arguments import (
    OnAlert,
    drop_escalation_clears,
    handle_alert,
    merge_alerts,
    require_number,
    validate_budget,
    validate_every,
    validate_on_alert,
    validate_optimizers,
    validate_store,
)
from leadline.monitor.budget import Level, MeasurementSchedule
from leadline.monitor.clipping import Intervention, InterventionKind
from leadline.monitor.distributed import Ranks
from leadline.monitor.hooks import DetachableHook, do_not_compile
from leadline.monitor.journal import Journal
from leadline.monitor.light_steps import SkippedSteps
from leadline.monitor.loop_calls import subscribe
from leadline.monitor.non_finite import last_values
from leadline.monitor.sampler import Sampler, sampling_obstacle
from leadline.monitor.steps import TrainingSteps
from leadline.records.report import Report
from leadline.records.run import Alert, Event, RunInfo
from leadline.tracer.inputs import unwrap
from leadline.tracer.names import index_model
from leadline.tracer.process import allow_deep_calls
from leadline.tracer.sharded import original_class, reshard_all

Number = TypeVar("Number", Tensor, float)


class Watch:
    """A training run under observation, started by `leadline.watch`. Closing it removes every hook."""

    def __init__(
        self,
        model: nn.Module,
        optimizers: Sequence[Optimizer],
        journal: Journal,
        schedule: MeasurementSchedule,
        on_alert: OnAlert,
    ) -> None:
        obstacle = sampling_obstacle(model)
        if on_alert in ("skip_step", "clip"):
            schedule.min_level = Level.GRADIENTS
        if obstacle:
            schedule.max_level = min(schedule.max_level, Level.UPDATES)
        only_norms = (
            journal.ranks.sharded and not journal.ranks.is_writer
        )  # ranks that only join the norms of shards
        sampler = None if obstacle or only_norms else Sampler(model)
        self.stopped = False
        """True once an error alert was raised with `on_alert="stop"`, for loops that test `if w.stopped: break`."""
        self.trouble = ""
        """The error after which the watch gave up, else "". The watch's own errors never reach the training loop."""
        self._journal, self._schedule, self._on_alert = journal, schedule, on_alert
        self._process = os.getpid()
        self._steps = TrainingSteps(model, optimizers, journal, schedule, sampler)
        if on_alert in ("skip_step", "clip"):
            self._steps.intervention = Intervention(cast(InterventionKind, on_alert))
            journal.history.skips_non_finite = True
        if obstacle:
            journal.report_blindness(
                schedule.first_step,
                f"no step can be sampled because {obstacle}. Run `leadline.check` before",
            )
        self._handles: list[RemovableHandle] = []
        self._hooks: list[DetachableHook] = []
        self._steps.add_hooks = self._add_hooks
        self._loop = subscribe(self._steps.ledger)
        try:
            self._loop.add_root(model)
            self._add_hooks(optimizers)
        except BaseException:
            self._remove_hooks()
            raise
        self._undo = contextlib.ExitStack()
        if _nests_deeply(unwrap(model)):
            self._undo.enter_context(allow_deep_calls())
        self._at_exit = _exit_handler(weakref.ref(self))
        atexit.register(self._at_exit)
        _OPEN.add(self)
        self.closed = False  # last: a watch that could not start has nothing to close

    @property
    def step(self) -> int:
        """The number of the current step."""
        return self._steps.step

    @property
    def overhead(self) -> float:
        """Seconds of watching per second of training, so far."""
        return self._schedule.overhead

    @property
    def seconds(self) -> float:
        """Seconds that watching took so far."""
        return self._schedule.spent

    @property
    def store(self) -> Path | None:
        """The run file; None if there is none, or if another process writes it."""
        return self._journal.path

    @property
    def model_name(self) -> str:
        """The class of the model."""
        return self._journal.info.model

    @property
    def budget(self) -> float:
        """The share of the step time that watching may take. It may be set while the watch is open."""
        return self._schedule.budget

    @budget.setter
    def budget(self, share: float) -> None:
        self._schedule.budget = validate_budget(share)

    def add_past_step(self, loss: float) -> None:
        """Record the loss of the step that was made just before the watch began, as its first step."""
        self._run_safely(self._steps.add_past_step, loss)

    def refute(self, codes: Collection[str], steps: int) -> None:
        """Raise no alert for findings of these checks in so many steps, because a trial has refuted them."""
        self._journal.refuted_codes, self._journal.refuted_until = frozenset(codes), self.step + steps

    def follow_progress(self, show: Callable[[Watch], None]) -> None:
        """Call `show` with this watch now and then: whenever recorded steps are written, or a step was measured."""
        reference = weakref.ref(self)

        def show_watch() -> None:
            watch = reference()
            if watch is not None:
                show(watch)

        self._steps.on_progress = show_watch

    @property
    def alerts(self) -> tuple[Alert, ...]:
        """Every alert so far, once: its step is the one at which it was raised, and its state "cleared" if it is over.

        An alert that grew more severe is the severe one, since the step at which it began.
        """
        return merge_alerts(self._journal.alerts)

    @property
    def alert_changes(self) -> tuple[Alert, ...]:
        """Alerts in the order in which they were raised and cleared."""
        return tuple(self._journal.alerts)

    @property
    def events(self) -> tuple[Event, ...]:
        return tuple(self._journal.events)

    @property
    def history(self) -> History:
        """The recent steps that run checks read: `w.history.scalars("grad_norm")`, `w.history.recent("grad_norm")`."""
        self._run_safely(self._steps.flush)
        return self._journal.history

    @property
    def report(self) -> Report | None:
        """The last report of a sampled step; None before the first one."""
        return self._steps.samples.report

    def loss(self, loss: Number) -> Number:
        """Record the loss and return it: `w.loss(criterion(model(x), y)).backward()`.

        Optimizers never see a loss, so without this call it is known only if a closure or the model returns it.
        Several calls in one step (micro-batches) are averaged.
        """
        if self.closed:
            raise InputError(
                expected="an open watch",
                got="a closed watch",
                fix="keep the training loop inside `with leadline.watch(...)`, or start a new watch",
            )
        if not self.trouble:
            try:  # inlined from `_run_safely`, which takes twice as long
                self._steps.loss(loss)
            except Exception as error:
                require_number(loss, "loss")
                self._give_up(error)
            if self._steps.new_alerts:
                self._handle_alerts()
        return loss

    def unclipped(self, norm: Number) -> Number:
        """Record the gradient norm before clipping and return it: `w.unclipped(clip_grad_norm_(parameters, 1.0))`.

        The watch reads gradients when the optimizer steps, after they were clipped. This norm shows it how much
        clipping removed (T813).
        """
        if not self.closed and not self.trouble:
            require_number(norm, "norm")
            self._run_safely(self._steps.unclipped, norm)
        return norm

    def close(self) -> None:
        """Remove all hooks, make the waiting reports and close the run file. Further calls do nothing."""
        if self.closed or os.getpid() != self._process:
            return
        self.closed = True
        self._remove_hooks()
        self._undo.close()
        atexit.unregister(self._at_exit)
        if not self.trouble:
            self._run_safely(self._steps.close)
        self._journal.close()
        with contextlib.suppress(AlertError):  # training is over, possibly because of another error
            self._handle_alerts()

    def __repr__(self) -> str:
        state = f"gave up ({self.trouble})" if self.trouble else "open"
        if self.closed:
            state = "closed"
        return f"<leadline.Watch at step {self.step}, {state}, {len(self.alerts)} alerts>"

    def __enter__(self) -> Watch:
        if self.closed:
            raise InputError(
                expected="an open watch", got="a closed watch", fix="start a new one: leadline.watch(...)"
            )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._record_crash(error)
        self.close()

    def _before(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        changed = self._run_safely(self._steps.begin, optimizer, (args, kwargs))
        if self._steps.new_alerts:
            self._handle_alerts()
        return changed

    def _after(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        try:  # inlined from `_run_safely`, because this runs in every step
            if self._steps.is_light and not (self._steps.current.stepped or self._steps.skipped.is_active):
                self._steps.end_light_step()
            else:
                self._steps.end(optimizer)
        except Exception as error:
            self._give_up(error)
        if self._steps.new_alerts:
            self._handle_alerts()

    def _run_safely(self, part: Callable[..., Any], *args: Any) -> Any:
        """Run a part of the watch; its errors end the watch and not the training."""
        try:
            return part(*args)
        except Exception as error:
            self._give_up(error)
            return None

    def _handle_alerts(self) -> None:
        alerts, self._steps.new_alerts = self._steps.new_alerts, []
        for alert in drop_escalation_clears(alerts):
            self.stopped |= self._on_alert == "stop" and alert.severity == "error" and alert.state == "raised"
            handle_alert(alert, self._on_alert)

    def _give_up(self, error: Exception) -> None:
        if self.trouble:
            return
        self.trouble = f"{type(error).__name__}: {error}"
        self._remove_hooks()
        self._journal.add_event(self.step, "warning", f"the watch gave up: {self.trouble}")
        text = f"leadline stopped watching after an internal error; training continues. Please report {self.trouble}"
        with contextlib.suppress(RuntimeWarning):  # a warnings filter may turn this into an error
            warnings.warn(text, RuntimeWarning, stacklevel=2)

    def leave_to_parent(self) -> None:
        """In a forked child: measure and record nothing more, because the parent goes on with the same run."""
        self.trouble = "this process is a fork of the watched one"
        self._remove_hooks()

    def _add_hooks(self, optimizers: Sequence[Optimizer]) -> None:
        """Follow the steps of these optimizers; all of them have the same two hooks."""
        before, after = self._hooks or (
            _BeforeStepHook(self._before, self._steps),
            _AfterStepHook(self._after, self._steps.skipped),
        )
        self._hooks = [before, after]
        self._handles = [handle for handle in self._handles if handle.hooks_dict_ref() is not None]
        for (
            each
        ) in optimizers:  # bound methods are called in half the time of objects, and these run in every step
            self._handles.append(each.register_step_pre_hook(before.__call__))
            self._handles.append(each.register_step_post_hook(after.__call__))

    def _remove_hooks(self) -> None:
        for hook in self._hooks:
            hook.disable()
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self._loop.close()
        self._steps.disarm()

    def _record_crash(self, error: BaseException) -> None:
        if self.closed or isinstance(error, AlertError | GeneratorExit):
            return
        last_finite = self._steps.samples.last_finite
        data = last_values(self._journal.history) | {"error": type(error).__name__}
        cause = first_cause(self._journal.history)
        if cause is not None:
            data["timeline"] = render_timeline(cause)
        if last_finite is not None:
            data["last_good_sample"] = last_finite[0]
        self._journal.add_event(self.step, "crash", f"{type(error).__name__}: {error}", data)

    def __del__(self) -> None:
        if not getattr(self, "closed", True):
            self.close()


class _BeforeStepHook(DetachableHook):
    """The hook before a step, which returns at once if its loss is not recorded, or only that and it has no closure."""

    def __init__(self, call: Callable[..., Any], steps: TrainingSteps) -> None:
        super().__init__(call)
        self._steps = steps

    def __call__(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        steps = self._steps
        if steps.skipped.is_active or (steps.is_light and len(args) < 2 and not kwargs):
            return None
        return super().__call__(optimizer, args, kwargs)


class _AfterStepHook(DetachableHook):
    """The hook after a step, which counts down steps whose loss is not recorded."""

    def __init__(self, call: Callable[..., Any], skipped: SkippedSteps) -> None:
        super().__init__(call)
        self._skipped = skipped

    def __call__(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self._skipped.left:
            self._skipped.left -= 1
            return None
        return super().__call__(optimizer, args, kwargs)


do_not_compile(_BeforeStepHook)
do_not_compile(_AfterStepHook)
_OPEN: weakref.WeakSet[Watch] = weakref.WeakSet()


def _leave_all_to_parent() -> None:
    for watch in list(_OPEN):
        if not watch.closed:
            watch.leave_to_parent()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_all_to_parent)


def _exit_handler(reference: weakref.ref[Watch]) -> Callable[[], None]:
    """Return a function that closes the watch when the process ends, and records the error it ended with."""

    def close() -> None:
        watch = reference()
        if watch is None or watch.closed:
            return
        error = getattr(sys, "last_value", None)
        if error is not None:
            watch._record_crash(error)
        watch.close()

    return close


# Derived: a call of a module takes three Python frames, and up to five with hooks; half the limit is left to others.
HOOKED_FRAMES = 5


def _nests_deeply(model: nn.Module) -> bool:
    """Whether a pass of the model with hooks could come near the recursion limit."""
    paths = [each.names[0] for each in index_model(model).modules.values()]
    depth = 1 + max(path.count(".") for path in paths)
    return 2 * HOOKED_FRAMES * depth > sys.getrecursionlimit()


def start_watch(
    model: nn.Module,
    optimizer: Optimizer | Sequence[Optimizer],
    *,
    store: str | Path | None = None,
    budget: float = 0.01,
    every: int | None = None,
    on_alert: OnAlert = "log",
) -> Watch:
    """Validate the arguments and start a Watch; see `leadline.watch`."""
    reshard_all(unwrap(model))
    optimizers = validate_optimizers(model, optimizer)
    share, interval = validate_budget(budget), validate_every(every)
    path, action = validate_store(store), validate_on_alert(on_alert)
    ranks = Ranks(model)
    info = _run_info(unwrap(model), optimizers, share if interval is None else None, ranks)
    journal = Journal(info, path, ranks)
    schedule = MeasurementSchedule(share, interval, journal.first_step, ranks.max_level)
    try:
        return Watch(model, optimizers, journal, schedule, action)
    except BaseException:
        journal.close()
        raise


def _run_info(
    model: nn.Module, optimizers: Sequence[Optimizer], budget: float | None, ranks: Ranks
) -> RunInfo:
    return RunInfo(
        model=original_class(model).__qualname__,
        optimizer=", ".join(dict.fromkeys(type(each).__name__ for each in optimizers)),
        parameters=sum(each.numel() for each in model.parameters() if each.requires_grad),
        budget=budget,
        world_size=ranks.world_size,
        rank=ranks.rank,
    )
