"""Counting how often a prediction was right, and the tables made of the counts. No torch."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from benchmarks.result_files import table
from benchmarks.verdicts.cases import FAILED, Labeled


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """Predictions against the truth; an alarm is a prediction of trouble."""

    caught: int
    """Alarms on runs that failed."""
    missed: int
    false_alarms: int
    passed: int
    """No alarm, and the run reached its target."""

    @property
    def precision(self) -> float:
        return _share(self.caught, self.caught + self.false_alarms)

    @property
    def recall(self) -> float:
        return _share(self.caught, self.caught + self.missed)

    @property
    def false_alarm_rate(self) -> float:
        return _share(self.false_alarms, self.false_alarms + self.passed)

    @property
    def balanced_accuracy(self) -> float:
        """The mean of the recall and of the share of healthy runs that were let pass."""
        return (self.recall + 1 - self.false_alarm_rate) / 2

    @property
    def count(self) -> int:
        return self.caught + self.missed + self.false_alarms + self.passed


def _share(part: int, whole: int) -> float:
    return part / whole if whole else math.nan


def score(pairs: Iterable[tuple[bool, str]]) -> Score:
    """Of (alarm, label) pairs."""
    counts = Counter((alarm, label in FAILED) for alarm, label in pairs)
    return Score(
        caught=counts[True, True],
        missed=counts[False, True],
        false_alarms=counts[True, False],
        passed=counts[False, False],
    )


def settle(case: Labeled, target: float) -> str:
    """A label for a borderline case too: reached if its progress in the budget made the bare target."""
    if case.label != "borderline":
        return case.label
    return "reached" if (case.progress or 0.0) >= target else "stuck"


def row(name: str, found: Score) -> list[str]:
    """A line of the table of figures."""
    rates = (found.balanced_accuracy, found.recall, found.precision, found.false_alarm_rate)
    counts = (found.caught, found.missed, found.false_alarms, found.passed)
    return [name, *(percent(rate) for rate in rates), *map(str, counts)]


HEADER = [
    "",
    "balanced accuracy",
    "recall",
    "precision",
    "false alarms",
    "caught",
    "missed",
    "false",
    "passed",
]


def percent(share: float) -> str:
    return "–" if math.isnan(share) else f"{100 * share:.1f} %"


def figures(scores: Mapping[str, Score]) -> str:
    """The table of figures, a line a predictor."""
    return table(HEADER, [row(name, found) for name, found in scores.items()])
