"""A repair on the page: the verdict after it, the loss with and without each fix, and all that was tried."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from markupsafe import Markup

from leadline.records import Outcome, Trial
from leadline.records.repair import RepairReport
from leadline.report.charts.lines import Line, Values, line_chart
from leadline.report.html.carried import rounded
from leadline.report.repair import REACHES
from leadline.report.verdict import TITLES, sentence
from leadline.text import number, plural


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Two losses by step: as data for the page's charts, and as a picture."""

    title: str
    series: list[dict[str, Any]]
    sketch: Markup
    steps: Sequence[int] | None = None
    state: str = ""
    why: str = ""

    @property
    def spec(self) -> dict[str, Any]:
        """As charts.js reads it."""
        return {"kind": "log", "x": self.steps, "starts": [], "series": self.series}


@dataclass(frozen=True, slots=True, kw_only=True)
class Mended:
    """What came of a repair."""

    sentence: str
    curves: list[Curve]
    outcomes: Sequence[tuple[Outcome, str]]
    """All that was tried, each with what it reaches in words."""
    notes: Sequence[str]


def mended(repair: RepairReport) -> Mended:
    return Mended(
        sentence=_sentence(repair),
        curves=[*_curves(repair)],
        outcomes=[(each, REACHES[each.reach]) for each in repair.outcomes],
        notes=repair.notes,
    )


def _sentence(repair: RepairReport) -> str:
    tried = plural(sum(each.state != "not run" for each in repair.outcomes), "fix").replace("fixs", "fixes")
    if repair.after is None:
        return f"No fix is recommended: {tried} tried in {number(repair.seconds)} s."
    kept = plural(sum(each.kept for each in repair.outcomes), "fix").replace("fixs", "fixes")
    flat = " In the last trial its loss did not fall." if repair.learns is False else ""
    return f"After {kept}: {TITLES[repair.after.verdict]}, {sentence(repair.after)}.{flat}"


def _curves(repair: RepairReport) -> Iterator[Curve]:
    """The whole repair first, then each fix that was trained, the kept and the verified before the rest."""
    if repair.trial is not None:
        alone = not repair.trial.treated
        yield _trial("as it is" if alone else "the whole repair", "", "", repair.trial)
    rank = {"verified": 0, "refuted": 1, "not run": 2}
    for each in sorted(repair.outcomes, key=lambda each: (not each.kept, rank[each.state])):
        if each.trial is not None:
            yield _trial(each.title, f"{each.state}, kept" if each.kept else each.state, each.why, each.trial)


def _trial(title: str, state: str, why: str, trial: Trial) -> Curve:
    rows = [("with the fix", "main", trial.treated), ("without", "second", trial.untreated)]
    return replace(curve(title, [row for row in rows if row[2]]), state=state, why=why)


def curve(title: str, rows: Sequence[tuple[str, str, Values]], steps: Sequence[int] | None = None) -> Curve:
    """Lines by step, each with its label and tone. `steps`: where each value lies; None: one after the other."""
    lines = [Line(values=values, tone=tone, sparse=steps is not None) for _, tone, values in rows]
    series = [
        {"label": label, "tone": tone, "values": rounded(list(values)), "sparse": steps is not None}
        for label, tone, values in rows
    ]
    return Curve(
        title=title,
        series=series,
        steps=steps,
        sketch=Markup(line_chart(lines, label=f"Loss by step: {title}")),
    )
