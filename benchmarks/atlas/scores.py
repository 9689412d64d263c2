"""How often the verdict on a problem came true, beside the naive baselines."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from benchmarks.atlas.causes import is_right_cause
from benchmarks.atlas.flaws import FLAWS
from benchmarks.atlas.problem import Half, half_of
from benchmarks.atlas.truth import MAX_FAILED, MIN_REACHED, SEEDS, Outcome, judge, progress
from benchmarks.result_files import Results
from leadline.checks._probability import MIN_TRAINING_PROBABILITY, fitted_model, predict

MIN_NAIVE_FALL = 0.05
MAX_LOST = 0.1
"""Progress that a repair may lose before it counts as made worse."""
BINS = (0.0, 0.05, 0.2, 0.5, 0.8, 0.95, 1.0)
"""Bounds of the bins of probability in the reliability diagram."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One problem: how it trained, and what was said about it."""

    family: str
    flaw: str
    shares: list[float]
    facts: dict[str, Any]
    answer: dict[str, Any]

    @property
    def name(self) -> str:
        return f"{self.family} | {self.flaw}"

    @property
    def half(self) -> Half:
        return half_of(self.family)

    @property
    def outcome(self) -> Outcome:
        return judge(self.shares)

    @property
    def fails(self) -> bool:
        return self.outcome == "fails"

    @property
    def is_healthy(self) -> bool:
        """Whether nothing about the family was changed but its width or activation, and it reaches."""
        return FLAWS[self.flaw].group == "healthy" and self.outcome == "reaches"

    @property
    def asks_wrongly(self) -> bool:
        """Whether an error about the question or about numbers decides the verdict, and not the first steps."""
        codes = self.answer["codes"].items()
        return any(severity == "error" and code[0] in "DN" for code, severity in codes)

    @property
    def chance(self) -> float | None:
        """The probability that it trains, by the model of the package; None where no rehearsal gave one."""
        measured = self.answer.get("quantities")
        return predict(measured, fitted_model()).probability if measured and not self.asks_wrongly else None

    @property
    def alarm(self) -> bool:
        """Whether the verdict is anything but "trains"; an undecided one is no alarm."""
        chance = self.chance
        if chance is None:
            return self.answer["verdict"] in ("poor", "fails", "error")
        return chance < MIN_TRAINING_PROBABILITY

    @property
    def is_outdated(self) -> bool:
        """Whether the verdict was given by a model of the probability that says the opposite of the present one."""
        return self.alarm != (self.answer["verdict"] in ("poor", "fails", "error"))

    @property
    def names_cause(self) -> bool | None:
        """Whether the finding on top names the right cause; None unless it fails and an alarm was raised."""
        if not self.fails or not self.alarm:
            return None
        cause = self.answer.get("cause")
        return cause is not None and is_right_cause(self.flaw, cause)


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """Figures of one judge on a set of problems."""

    failed: int
    caught: int
    reached: int
    false_alarms: int

    @property
    def recall(self) -> float:
        return self.caught / self.failed if self.failed else math.nan

    @property
    def false_alarm_rate(self) -> float:
        return self.false_alarms / self.reached if self.reached else math.nan

    @property
    def balanced(self) -> float:
        return (self.recall + 1 - self.false_alarm_rate) / 2


def rows(truth: Results, answers: Results) -> list[Row]:
    """Return a row for each problem with an outcome and an answer."""
    cases, found = truth["cases"], []
    for name, case in cases.items():
        family, _, flaw = name.partition(" | ")
        healthy, answer = cases.get(f"{family} | healthy"), answers["cases"].get(name)
        if healthy and answer and "error" not in case:
            seeds = [str(seed) for seed in SEEDS if str(seed) in case and str(seed) in healthy]
            shares = [progress(case[seed], healthy[seed]) for seed in seeds]
            found.append(Row(family=family, flaw=flaw, shares=shares, facts=case, answer=answer))
    return found


def _fall(row: Row, judge: str) -> float:
    """What a naive judge saw; -1 if the loss became non-finite."""
    fall = row.facts[judge]
    return -1.0 if fall is None else float(fall)


Judge = Callable[[Row], bool]
"""Whether a judge raises an alarm."""
OWN_JUDGE = "Leadline"
JUDGES: dict[str, Judge] = {
    OWN_JUDGE: lambda row: row.alarm,
    "naive: the loss on one batch falls by 5 % in 11 steps": lambda row: (
        not (row.facts["one_batch"] or -1) >= MIN_NAIVE_FALL
    ),
    "naive: it falls at all in 11 steps on fresh batches": lambda row: not (row.facts["fresh"] or -1) > 0,
}


def score(chosen: Iterable[Row], alarms: Callable[[Row], bool]) -> Score:
    counted = [(row.outcome, alarms(row)) for row in chosen]
    return Score(
        failed=sum(outcome == "fails" for outcome, _ in counted),
        caught=sum(outcome == "fails" and alarm for outcome, alarm in counted),
        reached=sum(outcome == "reaches" for outcome, _ in counted),
        false_alarms=sum(outcome == "reaches" and alarm for outcome, alarm in counted),
    )


def causes(chosen: Iterable[Row]) -> tuple[int, int]:
    """How many of the failures that were caught have the right cause on top, and how many were caught."""
    named = [row.names_cause for row in chosen if row.names_cause is not None]
    return sum(named), len(named)


def brier(chosen: Iterable[Row]) -> float:
    """The mean squared difference of the stated probability and the outcome."""
    squares = [
        (row.chance - (not row.fails)) ** 2
        for row in chosen
        if row.chance is not None and row.outcome != "borderline"
    ]
    return sum(squares) / len(squares) if squares else math.nan


def reliability(chosen: Iterable[Row]) -> list[tuple[float, float, int, float, float]]:
    """For each bin: its bounds, the number of problems, the mean stated probability, and the share that reached."""
    counted = [row for row in chosen if row.chance is not None and row.outcome != "borderline"]
    table = []
    for low, high in pairwise(BINS):
        inside = [row for row in counted if low <= row.chance < high or row.chance == high == 1.0]
        if inside:
            stated = sum(row.chance for row in inside if row.chance is not None) / len(inside)
            table.append((low, high, len(inside), stated, sum(not row.fails for row in inside) / len(inside)))
    return table


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairScore:
    """What `leadline fix` did to problems that failed and to problems that reached."""

    failed: int
    repairable: int
    """Failed problems that an edit can repair."""
    repaired: int
    changed: int
    """Failed problems for which it recommended something."""
    worse: int
    healthy: int
    left_alone: int

    def __str__(self) -> str:
        return (
            f"repaired {self.repaired} of {self.failed} that failed, of which an edit can repair {self.repairable} "
            f"(something recommended for {self.changed}), "
            f"made worse {self.worse}; left alone {self.left_alone} of {self.healthy} that reach"
        )


def repair_score(truth: Results, repairs: Results, half: Half) -> RepairScore:
    """Count what came of the repairs on one half. A repaired problem recovers as much as one that reaches."""
    cases, failed, healthy, repairable = truth["cases"], [], [], 0
    for name, answer in repairs["cases"].items():
        family, reference = name.partition(" | ")[0], f"{name.partition(' | ')[0]} | healthy"
        if half_of(family) != half or "outdated" in answer:
            continue
        before = progress(cases[name]["0"], cases[reference]["0"])
        outcome = answer.get("outcome")
        after = progress(outcome, cases[reference]["0"]) if outcome else None
        (failed if before < MAX_FAILED else healthy).append((before, after))
        repairable += before < MAX_FAILED and FLAWS[name.partition(" | ")[2]].repairable
    changed = [(before, after) for before, after in failed if after is not None]
    altered = [*changed, *((before, after) for before, after in healthy if after is not None)]
    return RepairScore(
        failed=len(failed),
        repairable=repairable,
        repaired=sum(after >= MIN_REACHED for _, after in changed),
        changed=len(changed),
        worse=sum(after < min(before, 1.0) - MAX_LOST for before, after in altered),
        healthy=len(healthy),
        left_alone=sum(after is None for _, after in healthy),
    )


def summary(chosen: list[Row]) -> str:
    """Return the figures of both halves as text, without names."""
    lines = []
    for half in ("calibration", "held out"):
        inside = [row for row in chosen if row.half == half]
        borderline = sum(row.outcome == "borderline" for row in inside)
        lines.append(f"{half}: {len(inside)} problems, {borderline} of them borderline")
        for name, alarms in JUDGES.items():
            got = score(inside, alarms)
            lines.append(
                f"  {name}: balanced {got.balanced:.1%}, recall {got.caught}/{got.failed} = {got.recall:.1%}, "
                f"false alarms {got.false_alarms}/{got.reached} = {got.false_alarm_rate:.1%}"
            )
        undecided = sum(row.answer["verdict"] == "undecided" for row in inside)
        right, caught = causes(inside)
        lines.append(
            f"  undecided {undecided}; Brier {brier(inside):.3f}; right cause on top {right} of {caught}"
        )
        for low, high, count, stated, true in reliability(inside):
            lines.append(
                f"    {low:.2f} to {high:.2f}: {count} problems, stated {stated:.2f}, came true {true:.2f}"
            )
    return "\n".join(lines)
