"""Which bugs were named, which were located, and which healthy twins were silent."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.wiring.answers import SEPARATOR, Answer
from benchmarks.wiring.problem import PROBLEMS, Bug, Part, Problem
from leadline.checks import model_checks
from leadline.records import severity_rank


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One program with a bug, or without one, and what was said about it."""

    problem: Problem
    bug: Bug | None
    answer: Answer

    @property
    def name(self) -> str:
        return f"{self.problem.name}{SEPARATOR}{self.bug.name if self.bug else ''}"

    @property
    def part(self) -> Part:
        return self.problem.part

    @property
    def is_named(self) -> bool:
        return bool(self._matching(self.answer))

    @property
    def is_located(self) -> bool:
        words = self.bug.says if self.bug else ()
        return any(all(word in each["text"] for word in words) for each in self._matching(self.answer))

    @property
    def is_named_by_baseline(self) -> bool:
        return bool(self._matching(self.answer["baseline"]))

    @property
    def has_right_verdict(self) -> bool:
        return self.answer["verdict"] in ("poor", "fails") or bool(self.bug and self.bug.note)

    @property
    def alarms(self) -> list[str]:
        """Findings of family D at warning or above."""
        return sorted({each["name"] for each in self.answer["findings"] if _is_wiring_alarm(each)})

    def _matching(self, answer: Answer) -> list[dict[str, Any]]:
        if self.bug is None:
            return []
        least = severity_rank("info" if self.bug.note else "warning")
        return [
            each
            for each in answer["findings"]
            if each["name"] in self.bug.expected and severity_rank(each["severity"]) >= least
        ]


WIRING_CHECKS = {each.name for each in model_checks() if each.code.startswith("D")}


def _is_wiring_alarm(finding: dict[str, Any]) -> bool:
    return finding["name"] in WIRING_CHECKS and severity_rank(finding["severity"]) >= severity_rank("warning")


def rows(answers: dict[str, Answer]) -> list[Row]:
    """The rows of all programs and bugs that have an answer."""
    return [
        Row(problem=problem, bug=bug, answer=answers[name])
        for problem in PROBLEMS.values()
        for bug in (None, *problem.bugs)
        if (name := f"{problem.name}{SEPARATOR}{bug.name if bug else ''}") in answers
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """Counts over some rows."""

    bugs: int
    named: int
    located: int
    right_verdicts: int
    named_by_baseline: int
    twins: int
    silent: int


def score(chosen: Iterable[Row]) -> Score:
    chosen = list(chosen)
    sick: Sequence[Row] = [row for row in chosen if row.bug is not None]
    twins = [row for row in chosen if row.bug is None]
    return Score(
        bugs=len(sick),
        named=sum(row.is_named for row in sick),
        located=sum(row.is_located for row in sick),
        right_verdicts=sum(row.has_right_verdict for row in sick),
        named_by_baseline=sum(row.is_named_by_baseline for row in sick),
        twins=len(twins),
        silent=sum(not is_miss(row) for row in twins),
    )


def line_of(row: Row) -> str:
    """What was expected and what was said, for one row."""
    said = [
        f"{each['name']}({each['severity'][0]}) {each['text']}"
        for each in row.answer["findings"]
        if each["severity"] != "info" or (row.bug and each["name"] in row.bug.expected)
    ]
    wanted = "silence" if row.bug is None else f"{' or '.join(row.bug.expected)} {list(row.bug.says)}"
    said += [row.answer["error"]] if "error" in row.answer else []
    lines = [
        f"{row.name}: expected {wanted}, verdict {row.answer['verdict']}",
        *(f"    {each}" for each in said),
    ]
    return "\n".join(lines)


def is_miss(row: Row) -> bool:
    if row.bug is None:
        return bool(row.alarms) or row.answer["verdict"] == "error"
    return not (row.is_located and row.has_right_verdict)
