"""Fixes that were tried: the loss with and without each, as curves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from leadline.drawing.chart import Line, line_chart
from leadline.records import Outcome
from leadline.report.html.carried import rounded


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Two curves of one trial: as data for the page's charts, and as a picture."""

    outcome: Outcome
    spec: dict[str, Any]
    sketch: Markup


def curves_of(outcomes: Sequence[Outcome]) -> list[Curve]:
    """One for each fix that was trained, verified ones first."""
    tried = [each for each in outcomes if each.trial is not None]
    return [
        _curve(each) for each in sorted(tried, key=lambda each: (not each.kept, each.state != "verified"))
    ]


def _curve(outcome: Outcome) -> Curve:
    trial = outcome.trial
    treated, untreated = ((), ()) if trial is None else (trial.treated, trial.untreated)
    series = [
        {"label": "with the fix", "tone": "main", "values": rounded(list(treated))},
        {"label": "without", "tone": "second", "values": rounded(list(untreated))},
    ]
    lines = [Line(values=treated), Line(values=untreated, tone="second")]
    return Curve(
        outcome=outcome,
        spec={"kind": "log", "starts": [], "series": series},
        sketch=Markup(line_chart(lines, label=f"Loss by step with and without {outcome.fix}")),
    )
