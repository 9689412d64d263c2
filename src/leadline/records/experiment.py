"""What the lab found: a claim of an article, what was predicted and measured, and the verdict that follows from it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from leadline.records.codec import decode, encode

LAB_SCHEMA = "leadline.lab/1"

Party = Literal["article", "correction"]
"""Whose prediction it is: what the article's words come to, or what we say is true instead or besides."""
Ruling = Literal["holds", "holds under conditions", "false as stated", "undecided", "unexplained"]
"""The first three are verdicts that can be published. "undecided": a measurement is too coarse for its prediction.
"unexplained": what we ourselves say is true was measured to be false."""


class PredictionCheck(msgspec.Struct, frozen=True, kw_only=True):
    """One prediction beside its measurement."""

    what: str
    """The quantity and where it was measured, as Markdown with formulas."""
    by: Party
    predicted: float | None
    """None for a bound, which `low` or `high` says."""
    low: float | None
    """Smallest value that counts as agreement; None: no lower bound."""
    high: float | None
    origin: str
    """Where the prediction comes from, and how wide the tolerance is and why."""
    measured: float
    measured_low: float
    """95 % interval of `measured`, or what `interval` says."""
    measured_high: float
    runs: int
    interval: str

    @property
    def agrees(self) -> bool | None:
        """Whether the measurement confirms the prediction; None: its interval is too wide to tell.

        A band is contradicted by an interval that lies outside of it, and confirmed by one that touches it and is no
        wider than it. A bound is confirmed by an interval on its right side and contradicted by one on the wrong side.
        """
        below = self.high is not None and not self.measured_low <= self.high
        above = self.low is not None and not self.measured_high >= self.low
        if below or above:  # also of NaN, which confirms nothing
            return False
        if self.low is None or self.high is None:
            inside = (self.low is None or self.measured_low >= self.low) and (
                self.high is None or self.measured_high <= self.high
            )
            return True if inside else None
        return True if self.measured_high - self.measured_low <= self.high - self.low else None


class PlotLine(msgspec.Struct, frozen=True, kw_only=True):
    """Values at the places of a plot; None where there is none. `theory`: predicted, not measured."""

    label: str
    values: tuple[float | None, ...]
    theory: bool = False


class Plot(msgspec.Struct, frozen=True, kw_only=True):
    """A figure as numbers: lines over named places."""

    title: str
    across: str
    """What the places are, in words: "layers"."""
    names: tuple[str, ...]
    lines: tuple[PlotLine, ...]
    log: bool = True


class Experiment(msgspec.Struct, frozen=True, kw_only=True):
    """One claim, run. The verdict follows from the checks alone; `published` is what was found before."""

    code: str
    claim: str
    """The article's claim in our own words, one sentence."""
    article: str
    """Where and how the article says it, as Markdown."""
    test: str
    """What is done and measured."""
    truth: str
    """What is true, as published: in full, or instead."""
    published: Ruling
    verdict: Ruling
    checks: tuple[PredictionCheck, ...]
    plots: tuple[Plot, ...] = ()
    seeds: int
    seconds: float
    """Of processor time."""

    @property
    def agrees(self) -> bool:
        """The lab found what is published."""
        return self.verdict == self.published


class Lab(msgspec.Struct, frozen=True, kw_only=True):
    """Experiments that were run together, and on what."""

    schema: str = LAB_SCHEMA
    leadline: str
    torch: str
    experiments: tuple[Experiment, ...]

    def to_json(self) -> str:
        return encode(self)

    @classmethod
    def from_json(cls, text: str) -> Lab:
        return decode(text, cls, LAB_SCHEMA)


def ruling(checks: Sequence[PredictionCheck]) -> Ruling:
    """The verdict on a claim: whether the article's predictions are met everywhere, somewhere or nowhere.

    What we put in their place must be confirmed too, else the verdict is "unexplained".
    """
    said = {by: [check.agrees for check in checks if check.by == by] for by in ("article", "correction")}
    if not said["article"] or None in said["article"] + said["correction"]:
        return "undecided"
    if False in said["correction"]:
        return "unexplained"
    if all(said["article"]):
        return "holds"
    return "holds under conditions" if any(said["article"]) else "false as stated"
