"""The formats in which records are written, by name: one table per kind of record.

A format is a pure function of a record and of the reader's choices. It never decides what counts or what fails: that is
in the record, and the exit code follows from it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from leadline.records import Forecast
from leadline.records.repair import RepairReport
from leadline.records.report import Report, ReportComparison
from leadline.report.look import Look
from leadline.report.page import Page
from leadline.report.pages.comparison import Losses, comparison_page
from leadline.report.pages.forecast import forecast_page
from leadline.report.pages.repair import repair_page
from leadline.report.pages.report import report_page
from leadline.report.render import agent, github, jsonl, junit, markdown, sarif, text
from leadline.text import clean


def _text(reports: Sequence[Report], look: Look) -> str:
    """A page per report; if there are several, each below the name of its target."""
    pages = [text.render(report_page(each), look) for each in reports]
    if len(pages) == 1:
        return pages[0]
    names = [clean(each.target or each.profile.model) for each in reports]
    return "\n".join(f"── {name}\n{page}" for name, page in zip(names, pages, strict=True))


def _json(reports: Sequence[Report]) -> str:
    """One report as an object, several as an array with one report per line."""
    if len(reports) == 1:
        return reports[0].to_json() + "\n"
    return "[\n" + ",\n".join(each.to_json() for each in reports) + "\n]\n"


def _html(pages: Sequence[Page]) -> str:
    # Imported here because jinja2 and markdown-it are slow to import, and a text page needs neither.
    from leadline.report.render import html

    return html.render(pages)


FORMATS: Mapping[str, Callable[[Sequence[Report], Look], str]] = {
    "text": _text,
    "agent": lambda reports, look: agent.render(reports),
    "json": lambda reports, look: _json(reports),
    "jsonl": lambda reports, look: jsonl.render(reports),
    "github": lambda reports, look: github.render(reports),
    "sarif": lambda reports, look: sarif.render(reports),
    "junit": junit.render,
    "md": lambda reports, look: "\n".join(markdown.render(report_page(each)) for each in reports),
    "html": lambda reports, look: _html([report_page(each) for each in reports]),
}
"""Of reports, one or several."""

REPAIR_FORMATS: Mapping[str, Callable[[RepairReport, Look], str]] = {
    "text": lambda repair, look: text.render(repair_page(repair), look),
    "agent": lambda repair, look: agent.render_repair(repair),
    "json": lambda repair, look: repair.to_json() + "\n",
    "md": lambda repair, look: markdown.render(repair_page(repair)),
    "html": lambda repair, look: _html([repair_page(repair)]),
}

FORECAST_FORMATS: Mapping[str, Callable[[Forecast, Look], str]] = {
    "text": lambda forecast, look: text.render(forecast_page(forecast), look),
    "json": lambda forecast, look: forecast.to_json() + "\n",
    "md": lambda forecast, look: markdown.render(forecast_page(forecast)),
    "html": lambda forecast, look: _html([forecast_page(forecast)]),
}


def comparison_formats(
    comparison: ReportComparison, reports: tuple[Report, Report], losses: tuple[Losses, Losses] | None = None
) -> dict[str, Callable[[Look], str]]:
    """The formats of a comparison, which also needs the reports that it is about; `losses`: if both are runs."""
    page = comparison_page(comparison, reports, losses)
    return {
        "text": lambda look: text.render(page, look),
        "json": lambda look: comparison.to_json() + "\n",
        "html": lambda look: _html([page]),
    }
