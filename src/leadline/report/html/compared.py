"""Two reports on one page: verdicts side by side, profiles over each other, findings gained and lost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from leadline.records.report import Report, ReportComparison
from leadline.report.comparing import amount, ratio
from leadline.report.html.article import numbers, sketch, spec
from leadline.report.html.carried import packed
from leadline.report.html.overlay import overlaid
from leadline.report.html.page import fill
from leadline.report.html.repairs import Curve, curve
from leadline.report.verdict import TITLES, by_severity

Losses = tuple[Sequence[int], Sequence[float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A row of the table."""

    name: str
    first: str
    second: str
    ratio: str


def render_comparison(
    comparison: ReportComparison, reports: tuple[Report, Report], losses: tuple[Losses, Losses] | None = None
) -> str:
    """The page. `losses`: steps and loss of each, where both are runs."""
    axis, panels = overlaid(reports[0].profile, reports[1].profile, ("A", "B"))
    curves = [] if losses is None else [_losses(losses)]
    data: dict[str, Any] = {
        "names": axis.names,
        "blocks": numbers(axis),
        "panels": [spec(panel, axis) for panel in panels],
        "curves": [each.spec for each in curves],
        "record": packed(comparison.to_json()),
        "markdown": "",
    }
    return fill(
        "comparison.html",
        [data],
        title=f"{comparison.first.name} against {comparison.second.name}",
        comparison=comparison,
        titles=TITLES,
        panels=panels,
        sketches=[Markup(sketch(panel)) for panel in panels],
        curves=curves,
        measures=[
            Measured(name=each.name, first=amount(each.before), second=amount(each.after), ratio=ratio(each))
            for each in comparison.measures
        ],
        gained=by_severity(comparison.gained),
        lost=by_severity(comparison.lost),
    )


def _losses(losses: tuple[Losses, Losses]) -> Curve:
    """Both over one axis of steps; a step that one of them did not log is not drawn for it."""
    steps = sorted({*losses[0][0], *losses[1][0]})
    rows = []
    for label, tone, (own, values) in zip(("A", "B"), ("second", "main"), losses, strict=True):
        known = dict(zip(own, values, strict=True))
        rows.append((label, tone, [known.get(step) for step in steps]))
    return curve("loss by step", rows, steps=steps)
