"""A repair on the page: the verdict after it, the loss with and without each fix, and all that was tried."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from leadline.drawing.chart import Line, line_chart
from leadline.drawing.numbers import number, plural
from leadline.records import Outcome, Trial
from leadline.report.html.carried import rounded
from leadline.report.mending import REACHES
from leadline.report.repair import RepairReport
from leadline.report.verdict import TITLES, sentence


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Two losses by step: as data for the page's charts, and as a picture."""

    title: str
    state: str
    why: str
    series: list[dict[str, Any]]
    sketch: Markup

    @property
    def spec(self) -> dict[str, Any]:
        """As charts.js reads it."""
        return {"kind": "log", "starts": [], "series": self.series}


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
    return f"After {kept}: {TITLES[repair.after.verdict]}, {sentence(repair.after)}."


def _curves(repair: RepairReport) -> Iterator[Curve]:
    """The whole repair first, then each fix that was trained, the kept and the verified before the rest."""
    if repair.trial is not None:
        alone = not repair.trial.treated
        yield _curve("as it is" if alone else "the whole repair", "", "", repair.trial)
    rank = {"verified": 0, "refuted": 1, "not run": 2}
    for each in sorted(repair.outcomes, key=lambda each: (not each.kept, rank[each.state])):
        if each.trial is not None:
            yield _curve(each.title, f"{each.state}, kept" if each.kept else each.state, each.why, each.trial)


def _curve(title: str, state: str, why: str, trial: Trial) -> Curve:
    rows = [("with the fix", "main", trial.treated), ("without", "second", trial.untreated)]
    shown = [(label, tone, values) for label, tone, values in rows if values]
    series = [
        {"label": label, "tone": tone, "values": rounded(list(values))} for label, tone, values in shown
    ]
    lines = [Line(values=values, tone=tone) for _, tone, values in shown]
    return Curve(
        title=title,
        state=state,
        why=why,
        series=series,
        sketch=Markup(line_chart(lines, label=f"Loss by step: {title}")),
    )
