"""How often the verdict on a variant was right, next to the naive baselines."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from benchmarks.first_hour import truth as outcomes
from benchmarks.first_hour.truth import MIN_BASELINE_FALL, SEEDS, Outcome, Truth
from benchmarks.first_hour.variants import GROUPS, VARIANTS
from benchmarks.first_hour.verdict import (
    INSIDE,
    INSIDE_SEVERAL,
    ONE_BATCH,
    OUTSIDE,
    OUTSIDE_SEVERAL,
    SEVERAL_BATCHES,
    Answer,
    says_trains,
)
from benchmarks.result_files import Results


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One variant: how it trained, and what was said about it."""

    name: str
    group: str
    half: str
    shares: list[float]
    truth: Truth
    answer: Answer

    @property
    def outcome(self) -> Outcome:
        return outcomes.majority(self.shares)

    @property
    def trains(self) -> bool:
        return self.outcome == "trains"

    @property
    def counted(self) -> bool:
        """The seeds agree on whether it trains."""
        return outcomes.unanimous(self.shares)

    @property
    def equal(self) -> bool:
        """Both ways of passing the loss get the same verdict, with one batch and with several."""
        pairs = [pair for pair in (ONE_BATCH, SEVERAL_BATCHES) if pair[0] in self.answer]
        return all(self.answer[first]["verdict"] == self.answer[second]["verdict"] for first, second in pairs)

    def right(self, way: str) -> bool:
        return says_trains(self.answer, way) == self.trains


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """Figures of one judge on a set of variants."""

    right: int
    cases: int
    found: int
    broken: int
    false_alarms: int
    healthy: int


def rows(results: Results, truth: Results) -> list[Row]:
    """Return a row for each variant with a verdict and a complete outcome, in the order of the groups."""
    found = []
    for group, variants in GROUPS.items():
        for variant in variants:
            case, answer = truth["cases"].get(variant.name), results["cases"].get(variant.name)
            if not case or not answer or not case["held_out"]:
                continue
            shares = outcomes.shares(case, truth["cases"]["base"], truth["unigram"])
            found.append(
                Row(
                    name=variant.name,
                    group=group,
                    half=variant.half,
                    shares=shares,
                    truth=case,
                    answer=answer,
                )
            )
    return found


def score(chosen: Iterable[Row], says_it_trains: Callable[[Row], bool | None]) -> Score:
    """Return how often a judge is right; an answer of None is wrong, and counts as an alarm on a healthy variant."""
    counted = [(row.trains, says_it_trains(row)) for row in chosen if row.counted]
    return Score(
        right=sum(trains == said for trains, said in counted),
        cases=len(counted),
        found=sum(not trains and said is False for trains, said in counted),
        broken=sum(not trains for trains, _ in counted),
        false_alarms=sum(trains and said is not True for trains, said in counted),
        healthy=sum(trains for trains, _ in counted),
    )


JUDGES: dict[str, Callable[[Row], bool | None]] = {
    "Leadline, eight batches, loss inside": lambda row: says_trains(row.answer, INSIDE_SEVERAL),
    "Leadline, eight batches, loss outside": lambda row: says_trains(row.answer, OUTSIDE_SEVERAL),
    "Leadline, one batch, loss inside": lambda row: says_trains(row.answer, INSIDE),
    "Leadline, one batch, loss outside": lambda row: says_trains(row.answer, OUTSIDE),
    "11 steps: the loss fell by 5 %": lambda row: outcomes.baseline_trains(row.truth, MIN_BASELINE_FALL),
    "11 steps: the loss fell": lambda row: outcomes.baseline_trains(row.truth, 0.0),
}


def same_verdicts(chosen: Iterable[Row]) -> tuple[int, int]:
    """Return how many of all rows, counted or not, get the same verdict both ways."""
    listed = list(chosen)
    return sum(row.equal for row in listed), len(listed)


def line_of(name: str, answer: Answer, truth: Results) -> str:
    """Return one line for a terminal: the outcome, and what was said both ways."""
    case = truth["cases"].get(name, {"held_out": {}})
    outcome = "no outcome"
    if case["held_out"] and "base" in truth["cases"]:
        shares = outcomes.shares(case, truth["cases"]["base"], truth["unigram"])
        seeds = "" if len(shares) == len(SEEDS) else f", {len(shares)} of {len(SEEDS)} seeds"
        mark = "" if outcomes.unanimous(shares) else ", seeds disagree"
        outcome = f"{outcomes.majority(shares)} ({' '.join(f'{share:.2f}' for share in shares)}{seeds}{mark})"
    ways = [way for way in (*ONE_BATCH, *SEVERAL_BATCHES) if way in answer]
    said = " | ".join(f"{way} {answer[way]['verdict']} {' '.join(answer[way]['codes'])}" for way in ways)
    return f"{name}: {outcome} | {said}"


def summary(results: Results, truth: Results) -> str:
    """Return the figures of both halves as text, without names."""
    lines = []
    for half in ("calibration", "held out"):
        chosen = [row for row in rows(results, truth) if row.half == half]
        same, all_rows = same_verdicts(chosen)
        lines.append(f"{half}: same verdict both ways {same}/{all_rows}")
        for judge, says_it_trains in JUDGES.items():
            got = score(chosen, says_it_trains)
            lines.append(
                f"  {judge}: right {got.right}/{got.cases}, found {got.found}/{got.broken}, "
                f"false alarms {got.false_alarms}/{got.healthy}"
            )
    return "\n".join(lines)


def unknown_names(results: Results) -> set[str]:
    """Return stored variants that are no longer defined."""
    return set(results["cases"]) - set(VARIANTS)
