"""The watch: two hooks on each optimizer, and a way to end them whatever happens."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import warnings
import weakref
from collections.abc import Callable, Sequence
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
    answer,
    checked_budget,
    checked_every,
    checked_on_alert,
    checked_optimizers,
    checked_store,
    refuse_no_number,
    without_escalated,
)
from leadline.monitor.budget import Level, Timetable
from leadline.monitor.clipping import Intervention, Kind
from leadline.monitor.distributed import Ranks
from leadline.monitor.hooks import Doorway
from leadline.monitor.journal import Journal
from leadline.monitor.non_finite import last_words
from leadline.monitor.sampler import Sampler, why_unsampled
from leadline.monitor.steps import Steps
from leadline.records.report import Report
from leadline.records.run import Alert, Event, RunInfo
from leadline.tracer.inputs import unwrap
from leadline.tracer.sharded import original_class, reshard_all

Watched = TypeVar("Watched", Tensor, float)


class Watch:
    """A training run under observation; `leadline.watch` makes one. Closing it takes every hook off again."""

    def __init__(
        self,
        model: nn.Module,
        optimizers: Sequence[Optimizer],
        journal: Journal,
        table: Timetable,
        on_alert: OnAlert,
    ) -> None:
        why = why_unsampled(model)
        if on_alert in ("skip_step", "clip"):
            table.lowest = Level.GRADIENTS
        if why:
            table.highest = min(table.highest, Level.UPDATES)
        alone = (
            journal.ranks.sharded and not journal.ranks.writes
        )  # with the norms of shards, which all take together
        sampler = None if why or alone else Sampler(model)
        self.stopped = False
        """True once an error was seen and `on_alert="stop"`: for loops that ask `if w.stopped: break`."""
        self.closed = False
        self.trouble = ""
        """Why the watch gave up, if it did: an error of its own never becomes an error of the training loop."""
        self._journal, self._table, self._on_alert = journal, table, on_alert
        self._process = os.getpid()
        self._steps = Steps(model, optimizers, journal, table, sampler)
        if on_alert in ("skip_step", "clip"):
            self._steps.intervention = Intervention(cast(Kind, on_alert))
            journal.history.skips_non_finite = True
        if why:
            journal.event(table.first, "warning", f"no pass of this model can be sampled: {why}")
        self._handles: list[RemovableHandle] = []
        self._doors = [(each, Doorway(self._before), Doorway(self._after)) for each in optimizers]
        for each, before, after in self._doors:
            self._handles += [each.register_step_pre_hook(before), each.register_step_post_hook(after)]
        self._at_exit = _closer(weakref.ref(self))
        atexit.register(self._at_exit)

    @property
    def step(self) -> int:
        """The number of the step under way."""
        return self._steps.round.step

    @property
    def overhead(self) -> float:
        """Seconds that watching took for each second of training, so far."""
        return self._table.overhead

    @property
    def alerts(self) -> tuple[Alert, ...]:
        return tuple(self._journal.alerts)

    @property
    def events(self) -> tuple[Event, ...]:
        return tuple(self._journal.events)

    @property
    def history(self) -> History:
        """The recent past, as alarms see it: `w.history.scalars("grad_norm")`, `w.history.recent("grad_norm")`."""
        self._safely(self._steps.hand_over)
        return self._journal.history

    @property
    def report(self) -> Report | None:
        """The last whole check of a sampled step; None if none was made yet."""
        return self._steps.samples.report

    def loss(self, loss: Watched) -> Watched:
        """Tell the loss, and get it back: `w.loss(criterion(model(x), y)).backward()`.

        Optimisers never see a loss, so without this it is known only where a closure or the model returns it.
        Several calls in one step (micro-batches) are averaged.
        """
        if self.closed:
            raise InputError(
                expected="an open watch",
                got="one that was closed",
                fix="keep the training loop inside `with leadline.watch(...)`, or make a new watch",
            )
        if not self.trouble:
            try:  # as `_safely` does, and twice as fast
                self._steps.loss(loss)
            except Exception as error:
                refuse_no_number(loss, "loss")
                self._give_up(error)
            if self._steps.told:
                self._tell()
        return loss

    def unclipped(self, norm: Watched) -> Watched:
        """Tell the gradient's norm before clipping, and get it back: `w.unclipped(clip_grad_norm_(parameters, 1.0))`.

        Gradients are read when the optimiser steps, after you clipped them; with this the watch knows how much was
        removed (T813).
        """
        if not self.closed and not self.trouble:
            refuse_no_number(norm, "norm")
            self._safely(self._steps.unclipped, norm)
        return norm

    def close(self) -> None:
        """Take all hooks off, make the reports that are owed, and close the run file. May be called again."""
        if self.closed or os.getpid() != self._process:
            return
        self.closed = True
        self._unhook()
        atexit.unregister(self._at_exit)
        if not self.trouble:
            self._safely(self._steps.close)
        self._journal.close()
        with contextlib.suppress(AlertError):  # training is over; another error may be on its way out
            self._tell()

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"gave up ({self.trouble})" if self.trouble else "open"
        return f"<leadline.Watch at step {self.step}, {state}, {len(self._journal.alerts)} alerts>"

    def __enter__(self) -> Watch:
        if self.closed:
            raise InputError(
                expected="an open watch", got="one that was closed", fix="make a new one: leadline.watch(...)"
            )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._note_crash(error)
        self.close()

    def _before(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self._steps.is_light and len(args) < 2 and not kwargs:  # no closure, and nothing to read: be quick
            return None
        changed = self._safely(self._steps.begin, optimizer, (args, kwargs))
        if self._steps.told:
            self._tell()
        return changed

    def _after(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._safely(self._steps.end, optimizer)
        if self._steps.told:
            self._tell()

    def _safely(self, part: Callable[..., Any], *args: Any) -> Any:
        """Run a part of our own: its errors cost the watch, and not the run."""
        try:
            return part(*args)
        except Exception as error:
            self._give_up(error)
            return None

    def _tell(self) -> None:
        told, self._steps.told = self._steps.told, []
        for alert in without_escalated(told):
            self.stopped |= self._on_alert == "stop" and alert.severity == "error" and alert.state == "raised"
            answer(alert, self._on_alert)

    def _give_up(self, error: Exception) -> None:
        if self.trouble:
            return
        self.trouble = f"{type(error).__name__}: {error}"
        self._unhook()
        self._journal.event(self.step, "warning", f"the watch gave up: {self.trouble}")
        text = f"leadline stopped watching after an error of its own; training goes on. {self.trouble}"
        with contextlib.suppress(RuntimeWarning):  # a filter may make errors of warnings
            warnings.warn(text, RuntimeWarning, stacklevel=2)

    def _unhook(self) -> None:
        for _, before, after in self._doors:
            before.shut()
            after.shut()
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self._steps.disarm()

    def _note_crash(self, error: BaseException) -> None:
        if self.closed or isinstance(error, AlertError | GeneratorExit):
            return
        good = self._steps.samples.last_good
        data = last_words(self._journal.history) | {"error": type(error).__name__}
        if (cause := first_cause(self._journal.history)) is not None:
            data["timeline"] = render_timeline(cause)
        if good is not None:
            data["last_good_sample"] = good[0]
        self._journal.event(self.step, "crash", f"{type(error).__name__}: {error}", data)

    def __del__(self) -> None:
        if not getattr(self, "closed", True):
            self.close()


def _closer(watch: weakref.ref[Watch]) -> Callable[[], None]:
    """At the end of the process: a run that died of an error is noted as such."""

    def close() -> None:
        alive = watch()
        if alive is None or alive.closed:
            return
        error = getattr(sys, "last_value", None)
        if error is not None:
            alive._note_crash(error)
        alive.close()

    return close


# Watching a training run: what it costs is bounded, and it changes nothing.
#
# checks     what was passed, refused early            steps      from one optimiser step to the next
# budget     what to measure at which step             gauges     gradients, updates and weights of all parameters
# sampling   following a real pass, op by op           samples    block metrics and reports of a followed pass
# replay     the same for compiled models              exits      second moments of blocks, between two samples
# scaling    mixed precision                           journal    history, alarms, run file
# closures   losses and gradients made by them         watcher    the hooks, and taking them off


def start_watch(
    model: nn.Module,
    optimizer: Optimizer | Sequence[Optimizer],
    *,
    store: str | Path | None = None,
    budget: float = 0.01,
    every: int | None = None,
    on_alert: OnAlert = "log",
) -> Watch:
    """Check the arguments and start a Watch; see `leadline.watch`."""
    reshard_all(unwrap(model))
    optimizers = checked_optimizers(model, optimizer)
    limit, interval = checked_budget(budget), checked_every(every)
    path, reaction = checked_store(store), checked_on_alert(on_alert)
    ranks = Ranks(model)
    journal = Journal(
        _info(unwrap(model), optimizers, limit if interval is None else None, ranks), path, ranks
    )
    table = Timetable(limit, interval, journal.first_step, ranks.highest)
    return Watch(model, optimizers, journal, table, reaction)


def _info(model: nn.Module, optimizers: Sequence[Optimizer], budget: float | None, ranks: Ranks) -> RunInfo:
    return RunInfo(
        model=original_class(model).__qualname__,
        optimizer=", ".join(dict.fromkeys(type(each).__name__ for each in optimizers)),
        parameters=sum(each.numel() for each in model.parameters() if each.requires_grad),
        budget=budget,
        world_size=ranks.world,
        rank=ranks.rank,
    )
