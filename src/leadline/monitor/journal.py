"""The journal of a watch: its recent history, its alerts and events, and its run file if there is one."""

from __future__ import annotations

import dataclasses
import logging
import math
import time
from array import array
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from time import perf_counter
from typing import Any

from msgspec.structs import replace

from leadline.checks import run_checks
from leadline.checks._check import Symptom
from leadline.checks._history import History, RunLayout
from leadline.errors import InputError, SchemaError
from leadline.monitor.alerts import AlertTracker
from leadline.monitor.budget import MIN_HOLD_SECONDS
from leadline.monitor.distributed import Ranks
from leadline.monitor.runfile.queue import ScalarColumns
from leadline.monitor.runfile.write import Writer
from leadline.records import Finding
from leadline.records.report import Report
from leadline.records.run import GAP_KEY, INSIDE_OF_MODEL, Alert, Event, EventKind, RunInfo, Sample
from leadline.text import clean

# Events that every rank reports to the first one.
SHARED_EVENTS = ("non-finite", "crash", "skipped step")
# Heuristic: alerts and events held in memory; more than a user reads, and below 1 MB.
MAX_NOTES_IN_MEMORY = 1000
# Heuristic: seconds that the first step waits for a slow disk; storing it takes a few milliseconds.
MAX_FIRST_WAIT_SECONDS = 1.0
Vectors = dict[str, "array[float]"]
_LOG = logging.getLogger("leadline")


class Journal:
    """Records the steps, alerts and events of one watch."""

    def __init__(self, info: RunInfo, store: str | Path | None, ranks: Ranks) -> None:
        self.ranks, self.info = ranks, info
        self.path = None if store is None or not ranks.is_writer else Path(store)
        """The run file; None if there is none, or if another process writes it."""
        self.writer = None if store is None or not ranks.is_writer else _open_writer(store, info)
        self.history = History(RunLayout(), ranks=ranks.world_size)
        self.tracker = AlertTracker(run_checks(), rank=ranks.rank)
        self.alerts: deque[Alert] = deque(maxlen=MAX_NOTES_IN_MEMORY)
        self.events: deque[Event] = deque(maxlen=MAX_NOTES_IN_MEMORY)
        self._pending: list[tuple[float, int, dict[str, float], Mapping[str, tuple[str, Any]]]] = []
        self.next_flush = math.inf if self.writer is None else 0.0
        """When the writing thread may be woken again, by `perf_counter`."""
        self.hold_seconds = MIN_HOLD_SECONDS
        """Seconds that steps wait at most before the writing thread gets them."""
        self._has_stored = False
        """Whether the first step is in the run file."""
        self._writer_seconds = 0.0
        self._report_alerts: dict[str, Alert] = {}
        """Active alerts from reports of sampled steps, by code."""
        self.refuted_codes: frozenset[str] = frozenset()
        """Checks whose findings a trial has refuted ..."""
        self.refuted_until = 0
        """... so that they raise no alert before this step."""

    def set_pace(self, hold_seconds: float, delay: float) -> None:
        """Hold steps for so many seconds, and write less often while the process takes `delay` times as long."""
        self.hold_seconds = hold_seconds * delay
        if self.writer is not None:
            self.writer.slow_down(delay)

    def hold(self, seconds: float) -> None:
        """Let the next light steps wait for so many seconds, unless something else is recorded before."""
        self.next_flush = perf_counter() + max(seconds, self.hold_seconds)

    def take_writer_seconds(self) -> float:
        """Return the processor time of the thread that writes the run file, since the last call."""
        before, self._writer_seconds = (
            self._writer_seconds,
            0.0 if self.writer is None else self.writer.seconds,
        )
        return self._writer_seconds - before

    @property
    def first_step(self) -> int:
        """The step after the last one in a resumed run file, else 0."""
        last = None if self.writer is None else self.writer.last_step
        return 0 if last is None else last + 1

    def axis(self, name: str, labels: tuple[str, ...]) -> None:
        if self.writer is not None:
            self.writer.axis(name, labels)

    def set_layout(self, layout: RunLayout) -> None:
        """Set what the numbers of a vector belong to; known symmetries of the same parameters are retained."""
        if not layout.invariant and layout.parameters == self.history.layout.parameters:
            known = self.history.layout
            layout = dataclasses.replace(
                layout, invariant=known.invariant, rotation=known.rotation, settling=known.settling
            )
        self.history.set_layout(layout)
        self.axis("parameters", layout.parameters)
        if layout.blocks:
            self.axis("blocks", layout.blocks)
        if layout.heads:
            self.axis("heads", layout.heads)
        if layout.experts:
            self.axis("experts", layout.experts)

    def add_step(
        self, step: int, scalars: dict[str, float], vectors: Mapping[str, tuple[str, Any]]
    ) -> list[Alert]:
        """Record the numbers of a step; return the alerts that changed."""
        if self.writer is not None:
            self._pending.append((time.time(), step, scalars, vectors))
            if not self._has_stored or perf_counter() >= self.next_flush:
                self._flush(self.writer)
        numbers = {name: values for name, (_, values) in vectors.items()}
        self.history.add(Sample(step=step, scalars=scalars, vectors=numbers))
        return self.update_alerts()

    def add_light_steps(self, columns: ScalarColumns) -> None:
        """Record steps of which only loss and learning rate are known, without running the checks on each."""
        self.history.add_rows(columns.steps, columns.scalars)
        if self.writer is not None:
            self._flush(self.writer)
            self.writer.rows(columns)
            self._store_first_step(self.writer)

    def record_overhead(self, overhead: float) -> None:
        """Store the overhead of the whole run with its last step, unless that step was measured and has it already."""
        step = self.history.step
        if (
            self.writer is not None
            and step is not None
            and step not in self.history.scalars("overhead", 1).steps
        ):
            self.writer.put(step, {"overhead": overhead})

    def update_alerts(self, *, last: bool = False) -> list[Alert]:
        """Run the run checks on the history and return the alerts that changed; `last` if no step follows."""
        return [self._add_alert(each) for each in self.tracker.update(self.history, last=last)]

    def judge_loop(self, step: int, numbers: dict[str, float]) -> list[Alert]:
        """Judge numbers of the loop ledger that belong to no recorded step."""
        history, alerts = History().extend([Sample(step=step, scalars=numbers)]), []
        for check in run_checks():
            for symptom in check.look(history) if any(map(history.has, check.needs)) else ():
                alerts += self.add_symptom(check.code, symptom)
        return alerts

    def add_symptom(self, code: str, symptom: Symptom) -> list[Alert]:
        """Return the alerts of a symptom found outside the history, as if the check with this code had found it."""
        return [self._add_alert(each) for each in self.tracker.add_symptom(code, symptom)]

    def _flush(self, writer: Writer) -> None:
        """Hand the pending steps to the writer. Slow steps are handed over at once, so a kill loses only the last."""
        pending, self._pending = self._pending, []
        self.next_flush = perf_counter() + self.hold_seconds
        for when, step, scalars, vectors in pending:
            writer.put(step, scalars, vectors, when=when)
        if pending:
            self._store_first_step(writer)

    def _store_first_step(self, writer: Writer) -> None:
        """Wait until the first step of this watch is in the file, so that a kill leaves at least that."""
        if not self._has_stored:
            self._has_stored = True
            writer.flush(MAX_FIRST_WAIT_SECONDS)

    def add_report(self, step: int, report: Report) -> list[Alert]:
        """Record a report. Its warnings and errors become alerts, which a later report without them clears."""
        if self.writer is not None:
            self.writer.report(step, report.to_json())
        findings: dict[str, Finding] = {}
        for each in report.findings:
            is_refuted = each.code in self.refuted_codes and step < self.refuted_until
            if each.severity != "info" and not each.explained_by and not is_refuted:
                findings.setdefault(each.code, each)  # the first is the cause of those after it
        known = self._report_alerts
        cleared = [
            replace(each, step=step, state="cleared") for code, each in known.items() if code not in findings
        ]
        raised = [
            _as_alert(each, step, self.tracker.rank) for code, each in findings.items() if code not in known
        ]
        self._report_alerts = {code: each for code, each in known.items() if code in findings}
        self._report_alerts |= {each.code: each for each in raised}
        return [self._add_alert(each) for each in (*cleared, *raised)]

    def _add_alert(self, alert: Alert) -> Alert:
        self.alerts.append(alert)
        if self.writer is not None:
            self._flush(self.writer)
            self.writer.alert(alert)
        return alert

    def add_event(self, step: int, kind: EventKind, message: str, data: dict[str, Any] | None = None) -> None:
        event = Event(step=step, time=time.time(), kind=kind, message=message, data=data or {})
        if kind in SHARED_EVENTS:
            self.ranks.post(event)
        self._record_event(event)

    def report_blindness(self, step: int, message: str) -> None:
        """Log and record why the inside of the model is not measured, so that a report on this run can say it."""
        self.add_event(step, "warning", message, {GAP_KEY: INSIDE_OF_MODEL})
        _LOG.warning("step %d: %s", step, clean(message))

    def collect_rank_events(self) -> None:
        """Record the events that other ranks have posted."""
        for rank, event in self.ranks.collect():
            self._record_event(
                replace(event, message=f"rank {rank}: {event.message}", data=event.data | {"rank": rank})
            )

    def _record_event(self, event: Event) -> None:
        self.events.append(event)
        if self.writer is not None:
            self._flush(self.writer)
            self.writer.event(event)

    def close(self) -> None:
        self.collect_rank_events()
        if self.writer is not None:
            self._flush(self.writer)
            self.writer.close()


def _open_writer(store: str | Path, info: RunInfo) -> Writer:
    try:
        return Writer(store, info)
    except SchemaError as error:
        raise InputError(
            expected="store as a new file, or a file that a watch has written",
            got=str(error),
            fix="name another file",
        ) from None


def _as_alert(finding: Finding, step: int, rank: int) -> Alert:
    return Alert(
        code=finding.code,
        name=finding.name,
        severity=finding.severity,
        message=finding.message,
        action=finding.action,
        where=finding.where,
        layers=finding.layers,
        since=step,
        step=step,
        evidence=finding.evidence,
        rank=rank,
    )
