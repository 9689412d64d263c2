"""The checks stored during a run: as depth profiles for the live page, or as a static report."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace

from leadline.monitor.live.messages import Message
from leadline.monitor.past_run import judge_run
from leadline.monitor.runfile.read import Run
from leadline.records import Profile
from leadline.records.report import Report
from leadline.report.page import Chart, Series
from leadline.report.pages.profiles import profiles_of
from leadline.report.pages.report import report_page
from leadline.report.render import html
from leadline.report.render.html import chart_data
from leadline.text import clean


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
    profiles = profiles_of(_profile(run, nearest))
    first_charts = () if first == nearest else profiles_of(_profile(run, first)).charts
    axis = profiles.axis
    return {
        "step": nearest,
        "first": first,
        "names": [*map(clean, axis.names)],
        "blocks": axis.block_numbers,
        "panels": [
            {
                "title": chart.title,
                "unit": clean(chart.unit),
                "notes": [*map(clean, chart.notes)],
                **chart_data(chart, axis),
            }
            for chart in _with_first_check(profiles.charts, first_charts, first)
        ],
    }


def static_report(run: Run, step: int) -> tuple[str, str]:
    """Return file name and HTML of the check nearest to the step, or of the whole run if no check was stored."""
    nearest = nearest_check(run, step)
    if nearest is None:
        return "leadline-run.html", html.render([report_page(judge_run(run))])
    report = Report.from_json(run.report(nearest))
    return f"leadline-step-{nearest}.html", html.render([report_page(report)])


def _profile(run: Run, step: int) -> Profile:
    return Report.from_json(run.report(step)).profile


def _with_first_check(charts: Sequence[Chart], first_charts: Sequence[Chart], step: int) -> list[Chart]:
    """Add to each chart the curve that its first series had in the first check."""
    by_key = {chart.key: chart.series for chart in first_charts}
    return [
        replace(
            chart, series=(*chart.series, *_same_series(chart.series[0], by_key.get(chart.key, ()), step))
        )
        for chart in charts
    ]


def _same_series(series: Series, candidates: tuple[Series, ...], step: int) -> tuple[Series, ...]:
    same = (
        each for each in candidates if each.label == series.label and len(each.values) == len(series.values)
    )
    return tuple(replace(each, label=f"step {step}", tone="fifth", band=None) for each in same)[:1]
