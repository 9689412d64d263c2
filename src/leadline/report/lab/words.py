"""Predictions, measurements and verdicts in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from leadline.drawing.numbers import number
from leadline.records import Check, Experiment, Party, Ruling

TITLES: dict[Ruling, str] = {
    "holds": "HOLDS",
    "holds under conditions": "HOLDS UNDER CONDITIONS",
    "false as stated": "FALSE AS STATED",
    "undecided": "UNDECIDED",
    "unexplained": "UNEXPLAINED",
}
MEANINGS: dict[Ruling, str] = {
    "holds": "every prediction that follows from the article's words was met",
    "holds under conditions": "some were met, others not: it depends on what the article leaves out",
    "false as stated": "none was met",
    "undecided": "a measurement is too coarse for its prediction: run it with more seeds",
    "unexplained": "what is published as the truth was measured to be false",
}
COUNTED: dict[Ruling, str] = {
    "holds": "hold as stated",
    "holds under conditions": "hold under conditions",
    "false as stated": "false as stated",
    "undecided": "undecided",
    "unexplained": "unexplained",
}
PARTIES: dict[Party, str] = {"article": "article", "correction": "ours"}
ANSWERS = {True: "yes", False: "no", None: "open"}
DISAGREES = "the lab disagrees with what is published"


def predicted(check: Check) -> str:
    """The prediction: a value with its tolerance, or a bound."""
    if check.predicted is not None and check.high is not None:
        return f"{number(check.predicted)} ± {number(check.high - check.predicted)}"
    return f"≤ {number(check.high)}" if check.high is not None else f"≥ {number(check.low)}"


def measured(check: Check) -> str:
    """The measurement with its interval; a value that is the same in every run stands alone."""
    if check.measured_low == check.measured_high:
        return number(check.measured)
    return f"{number(check.measured)} ({number(check.measured_low)} to {number(check.measured_high)})"


def summary(experiments: Sequence[Experiment]) -> str:
    """How many of each verdict."""
    counts = Counter(each.verdict for each in experiments)
    return ", ".join(f"{counts[ruling]} {said}" for ruling, said in COUNTED.items() if counts[ruling])
