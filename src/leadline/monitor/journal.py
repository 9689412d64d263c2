"""Where what a watch sees goes: to the alarms, to the run file if there is one, and to whoever asks the watch."""

from __future__ import annotations

import dataclasses
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
from leadline.checks._history import History, Layout
from leadline.errors import InputError, SchemaError
from leadline.monitor.alerts import Desk
from leadline.monitor.distributed import Ranks
from leadline.monitor.runfile.queue import Rows
from leadline.monitor.runfile.write import Writer
from leadline.records import Finding
from leadline.records.report import Report
from leadline.records.run import Alert, Event, EventKind, RunInfo, Sample

HOLD = 0.25  # seconds; ours: the longest that a step waits before it is handed to the writing thread
WRITING = 0.0025  # share of the time for waking that thread; ours: a quarter of the default budget
ANOMALIES = ("non-finite", "crash", "skipped step")  # of a rank; the first rank is told of them
NOTES = 1000  # alerts and events kept in memory; ours
Vectors = dict[str, "array[float]"]


class Journal:
    """History, alarms and run file of one watch."""

    def __init__(self, info: RunInfo, store: str | Path | None, ranks: Ranks) -> None:
        self.ranks = ranks
        self.writer = None if store is None or not ranks.writes else _writer(store, info)
        self.history = History(Layout(), ranks=ranks.world)
        self.desk = Desk(run_checks(), rank=ranks.rank)
        self.alerts: deque[Alert] = deque(maxlen=NOTES)
        self.events: deque[Event] = deque(maxlen=NOTES)
        self._waiting: list[tuple[float, int, dict[str, float], Mapping[str, tuple[str, Any]]]] = []
        self.hand_over_at = math.inf if self.writer is None else 0.0
        """When the writing thread may be told of steps again, by `perf_counter`."""
        self._standing: dict[str, Alert] = {}
        """Alerts that come from checks of sampled steps, by code."""

    @property
    def seconds(self) -> float:
        """Processor time of the thread that writes the run file."""
        return 0.0 if self.writer is None else self.writer.seconds

    @property
    def first_step(self) -> int:
        """0, or the step after the last one that a resumed run file holds."""
        last = None if self.writer is None else self.writer.last_step
        return 0 if last is None else last + 1

    def axis(self, name: str, labels: tuple[str, ...]) -> None:
        if self.writer is not None:
            self.writer.axis(name, labels)

    def lay_out(self, layout: Layout) -> None:
        """What each number of a vector is about; what was known of symmetry stays known."""
        if not layout.invariant and layout.parameters == self.history.layout.parameters:
            known = self.history.layout
            layout = dataclasses.replace(
                layout, invariant=known.invariant, rotation=known.rotation, settling=known.settling
            )
        self.history.set_layout(layout)
        self.axis("parameters", layout.parameters)
        if layout.blocks:
            self.axis("blocks", layout.blocks)

    def put(
        self, step: int, scalars: dict[str, float], vectors: Mapping[str, tuple[str, Any]]
    ) -> list[Alert]:
        """The numbers of a step; returns what alarms make of them."""
        if self.writer is not None:
            self._waiting.append((time.time(), step, scalars, vectors))
            if perf_counter() >= self.hand_over_at:
                self._hand_over(self.writer)
        numbers = {name: values for name, (_, values) in vectors.items()}
        self.history.add(Sample(step=step, scalars=scalars, vectors=numbers))
        return self.ask()

    def add_rows(self, rows: Rows) -> None:
        """The least of many steps. Alarms are not asked about each of them."""
        self.history.add_rows(rows.steps, rows.scalars)
        if self.writer is not None:
            self._hand_over(self.writer)
            self.writer.rows(rows)

    def ask(self, *, last: bool = False) -> list[Alert]:
        """What alarms make of all that was noted so far; `last` if nothing will follow."""
        return [self.alert(each) for each in self.desk.ask(self.history, last=last)]

    def tell(self, code: str, symptom: Symptom) -> list[Alert]:
        """What was seen elsewhere than in the history, as if the alarm of this code had seen it."""
        return [self.alert(each) for each in self.desk.tell(code, symptom)]

    def _hand_over(self, writer: Writer) -> None:
        """Steps that are slower than the hold are handed over at once: a kill takes no more than the last."""
        waiting, self._waiting = self._waiting, []
        self.hand_over_at = perf_counter() + min(HOLD, writer.turn_seconds / WRITING)
        for when, step, scalars, vectors in waiting:
            writer.put(step, scalars, vectors, when=when)

    def report(self, step: int, report: Report) -> list[Alert]:
        """A whole check; its warnings and errors are alerts, once each, until a later check does not find them."""
        if self.writer is not None:
            self.writer.report(step, report.to_json())
        found: dict[str, Finding] = {}
        for each in report.findings:
            if each.severity != "info" and not each.explained_by:
                found.setdefault(each.code, each)  # the first is the cause of those after it
        gone = [each for code, each in self._standing.items() if code not in found]
        new = [
            _as_alert(each, step, self.desk.rank)
            for code, each in found.items()
            if code not in self._standing
        ]
        self._standing = {code: each for code, each in self._standing.items() if code in found}
        self._standing |= {each.code: each for each in new}
        return [
            self.alert(each) for each in (*[replace(old, step=step, state="cleared") for old in gone], *new)
        ]

    def alert(self, alert: Alert) -> Alert:
        self.alerts.append(alert)
        if self.writer is not None:
            self._hand_over(self.writer)
            self.writer.alert(alert)
        return alert

    def event(self, step: int, kind: EventKind, message: str, data: dict[str, Any] | None = None) -> None:
        event = Event(step=step, time=time.time(), kind=kind, message=message, data=data or {})
        if kind in ANOMALIES:
            self.ranks.post(event)
        self._keep(event)

    def gather(self) -> None:
        """Note what happened on the other ranks."""
        for rank, event in self.ranks.collect():
            self._keep(
                replace(event, message=f"rank {rank}: {event.message}", data=event.data | {"rank": rank})
            )

    def _keep(self, event: Event) -> None:
        self.events.append(event)
        if self.writer is not None:
            self._hand_over(self.writer)
            self.writer.event(event)

    def close(self) -> None:
        self.gather()
        if self.writer is not None:
            self._hand_over(self.writer)
            self.writer.close()


def _writer(store: str | Path, info: RunInfo) -> Writer:
    try:
        return Writer(store, info)
    except SchemaError as error:
        raise InputError(
            expected="store as a new file, or one that a watch has written",
            got=str(error),
            fix="name another file",
        ) from None


def _as_alert(finding: Finding, step: int, rank: int) -> Alert:
    return Alert(
        code=finding.code,
        name=finding.name,
        severity=finding.severity,
        message=finding.message,
        where=finding.where,
        layers=finding.layers,
        since=step,
        step=step,
        evidence=finding.evidence,
        rank=rank,
    )
