"""Counts how often predictions were right and makes tables of the counts, without torch."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from benchmarks.result_files import table
from benchmarks.verdicts.cases import FAILED, LabeledProblem


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
        """The mean of the recall and the share of healthy runs without an alarm."""
        return (self.recall + 1 - self.false_alarm_rate) / 2

    @property
    def count(self) -> int:
        return self.caught + self.missed + self.false_alarms + self.passed


def _share(part: int, whole: int) -> float:
    return part / whole if whole else math.nan


def score(pairs: Iterable[tuple[bool, str]]) -> Score:
    """Return the score of (alarm, label) pairs."""
    counts = Counter((alarm, label in FAILED) for alarm, label in pairs)
    return Score(
        caught=counts[True, True],
        missed=counts[False, True],
        false_alarms=counts[True, False],
        passed=counts[False, False],
    )


def settle(case: LabeledProblem, target: float) -> str:
    """Return the label; a borderline case counts as reached if its progress is at least the target."""
    if case.label != "borderline":
        return case.label
    return "reached" if (case.progress or 0.0) >= target else "stuck"


def row(name: str, scored: Score) -> list[str]:
    """Return one row of the table."""
    rates = (scored.balanced_accuracy, scored.recall, scored.precision, scored.false_alarm_rate)
    counts = (scored.caught, scored.missed, scored.false_alarms, scored.passed)
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
    """Return the table with one row per predictor."""
    return table(HEADER, [row(name, scored) for name, scored in scores.items()])
