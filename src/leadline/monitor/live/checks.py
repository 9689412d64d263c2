"""The checks stored on the way: their depth profiles beside theory and the first one, or one as a static report."""

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


def nearest(run: Run, step: int) -> int | None:
    """The step of the last check that was stored up to `step`, else of the first one; None if there is none."""
    stored = run.reports
    return stored[max(bisect_right(stored, step) - 1, 0)] if stored else None


def profiles(run: Run, step: int) -> Message:
    """The panels of the check nearest to a step, as charts.js reads them, with the main line of the first check."""
    here = nearest(run, step)
    if here is None:
        return {"step": None, "panels": []}
    first = run.reports[0]
    profile, base = _profile(run, here), None if first == here else _profile(run, first)
    axis = axis_of(profile)
    return {
        "step": here,
        "first": first,
        "names": axis.names,
        "blocks": numbers(axis),
        "panels": [
            {"title": panel.title, "unit": panel.unit, "notes": panel.notes, **spec(panel, axis)}
            for panel in _beside(panels_of(profile), [] if base is None else panels_of(base), first)
        ],
    }


def moment(run: Run, step: int) -> tuple[str, str]:
    """Name and text of a static page: the check nearest to the step; where none was stored, the run as a whole."""
    here = nearest(run, step)
    if here is None:
        return "leadline-run.html", render([judge_run(run)])
    return f"leadline-step-{here}.html", render([Report.from_json(run.report(here))])


def _profile(run: Run, step: int) -> Profile:
    return Report.from_json(run.report(step)).profile


def _beside(panels: list[Panel], before: list[Panel], step: int) -> list[Panel]:
    """Each panel with the line that its first series was at an earlier step."""
    known = {panel.key: panel.series for panel in before}
    return [
        replace(panel, series=(*panel.series, *_earlier(panel.series[0], known.get(panel.key, ()), step)))
        for panel in panels
    ]


def _earlier(now: Series, then: tuple[Series, ...], step: int) -> tuple[Series, ...]:
    same = (each for each in then if each.label == now.label and len(each.values) == len(now.values))
    return tuple(replace(each, label=f"step {step}", tone="fifth", band=None) for each in same)[:1]
