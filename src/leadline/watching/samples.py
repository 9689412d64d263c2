"""What becomes of a sampled pass: numbers for each block at once, a whole report when the budget has paid for it."""

from __future__ import annotations

from array import array
from typing import Any

from msgspec.structs import replace

from leadline.alarms.history import moved_row, places
from leadline.alarms.timeline import first_cause, render
from leadline.diagnosis import conclude, study
from leadline.readings import read
from leadline.records import Anomaly, Profile, Trace
from leadline.records.run import Alert
from leadline.report import Report
from leadline.tracing.custody import process_state_kept
from leadline.watching.blocks import AXIS, NOT_MEASURED, block_labels, block_numbers
from leadline.watching.budget import Timetable
from leadline.watching.journal import Journal
from leadline.watching.layout import joined, layout_of

REPORT_PER_OP = 2e-3  # seconds; ours: an upper end, 0.5 to 2 ms in the networks of benchmarks/watch.py


class Samples:
    """Keeps the traces whose report is owed (the first and the last), and makes reports of them."""

    def __init__(self, journal: Journal, table: Timetable) -> None:
        self.journal, self.table = journal, table
        self.last_good: tuple[int, Trace] | None = None
        """The last pass without anything that is not finite."""
        self.last: tuple[int, Trace] | None = None
        self.report: Report | None = None
        self.profile: Profile | None = None
        """What was read off the last pass."""
        self._good: Profile | None = None
        self._owed: list[tuple[int, Trace]] = []
        self._over = False
        """The weights were no numbers in the last pass."""

    def add(self, step: int, seen: Trace, parameters: tuple[str, ...]) -> dict[str, tuple[str, Any]]:
        """Block metrics of the pass, as vectors on their axis."""
        with process_state_kept():
            profile, _ = read(seen)
        self.profile = profile
        self.journal.event(step, "sample", f"{len(seen.ops)} ops", {"blocks": len(profile.blocks)})
        self.last = (step, seen)
        over = _is_over(profile, parameters)
        if profile.anomalies and not (over and self._over):
            self._trace_back(step, profile)
        if not profile.anomalies:
            self.last_good, self._good = self.last, profile
        if not over:  # a check of weights that are no numbers says nothing
            self._owed = [*self._owed[:1], self.last]
        self._over = over
        if block_labels(profile) != self.journal.history.layout.blocks:
            self.journal.lay_out(joined(self.journal.history.layout, layout_of(parameters, profile)))
        return {name: (AXIS, self.on_axis(values)) for name, values in block_numbers(profile).items()}

    def on_axis(self, values: array[float]) -> array[float]:
        """Numbers of the last pass's blocks, each in its place among all blocks that were ever seen."""
        own = () if self.profile is None else block_labels(self.profile)
        axis = self.journal.history.layout.blocks
        return values if own == axis else moved_row(values, places(own, axis), NOT_MEASURED)

    def _trace_back(self, step: int, profile: Profile) -> None:
        """Say where what is not finite came from: the op of this pass, and what happened in the steps before."""
        first = profile.anomalies[0]
        data = {"op": first.op, "module": first.module, "direction": first.direction, "source": first.source}
        good = None if self.last_good is None else self.last_good[0]
        seen = () if first.source else profile.anomalies
        cause = first_cause(self.journal.history, good=self._good, good_step=good, anomalies=seen)
        if cause is not None:
            data["timeline"] = render(cause)
        self.journal.event(step, "non-finite", _origin(first), data)

    def make_affordable(self) -> list[Alert]:
        """Make the oldest report that is owed, if the account pays for it."""
        if not self._owed or not self.table.affords(REPORT_PER_OP * len(self._owed[0][1].ops)):
            return []
        return self._make(*self._owed.pop(0))

    def make_all(self) -> list[Alert]:
        """When training is over, time costs nothing."""
        owed, self._owed = self._owed, []
        return [alert for each in owed for alert in self._make(*each)]

    def _make(self, step: int, seen: Trace) -> list[Alert]:
        with process_state_kept():  # what is imported on first use may draw random numbers
            profile, coverage = study(seen)
        self.report = replace(conclude(seen, profile, coverage), target=f"step {step}")
        known = self.journal.history.layout
        self.journal.lay_out(joined(known, layout_of(known.parameters, profile)))
        return self.journal.report(step, self.report)


def _is_over(profile: Profile, parameters: tuple[str, ...]) -> bool:
    """The weights are no numbers any more: the pass shows what came of it, and not where it came from."""
    return bool(profile.anomalies) and profile.anomalies[0].source in parameters


def _origin(first: Anomaly) -> str:
    if first.source:
        return f"{first.direction}: {first.source} is not finite to begin with"
    return f"{first.direction}: first at {first.op or 'the output'} in {first.module or 'the model'}"
