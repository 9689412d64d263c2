"""The checks stored during a run: as depth profiles for the live page, or as a static report."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import replace

from leadline.monitor.live.messages import Message
from leadline.monitor.past_run import judge_run
from leadline.monitor.runfile.read import Run
from leadline.records import Profile
from leadline.records.report import Report
from leadline.report.html import render
from leadline.report.html.article import numbers, spec
from leadline.report.html.panel import Panel, Series, axis_of
from leadline.report.html.panels import panels_of


def nearest_check(run: Run, step: int) -> int | None:
    """Return the step of the last check stored up to `step`, else of the first one; None if there is none."""
    stored = run.reports
    return stored[max(bisect_right(stored, step) - 1, 0)] if stored else None


def depth_profiles(run: Run, step: int) -> Message:
    """Return the panels of the check nearest to a step for charts.js, with the main curve of the first check."""
    nearest = nearest_check(run, step)
    if nearest is None:
        return {"step": None, "panels": []}
    first = run.reports[0]
    profile = _profile(run, nearest)
    first_panels = [] if first == nearest else panels_of(_profile(run, first))
    axis = axis_of(profile)
    return {
        "step": nearest,
        "first": first,
        "names": axis.names,
        "blocks": numbers(axis),
        "panels": [
            {"title": panel.title, "unit": panel.unit, "notes": panel.notes, **spec(panel, axis)}
            for panel in _with_first_check(panels_of(profile), first_panels, first)
        ],
    }


def static_report(run: Run, step: int) -> tuple[str, str]:
    """Return file name and HTML of the check nearest to the step, or of the whole run if no check was stored."""
    nearest = nearest_check(run, step)
    if nearest is None:
        return "leadline-run.html", render([judge_run(run)])
    return f"leadline-step-{nearest}.html", render([Report.from_json(run.report(nearest))])


def _profile(run: Run, step: int) -> Profile:
    return Report.from_json(run.report(step)).profile


def _with_first_check(panels: list[Panel], first_panels: list[Panel], step: int) -> list[Panel]:
    """Add to each panel the curve that its first series had in the first check."""
    by_key = {panel.key: panel.series for panel in first_panels}
    return [
        replace(
            panel, series=(*panel.series, *_same_series(panel.series[0], by_key.get(panel.key, ()), step))
        )
        for panel in panels
    ]


def _same_series(series: Series, candidates: tuple[Series, ...], step: int) -> tuple[Series, ...]:
    same = (
        each for each in candidates if each.label == series.label and len(each.values) == len(series.values)
    )
    return tuple(replace(each, label=f"step {step}", tone="fifth", band=None) for each in same)[:1]
