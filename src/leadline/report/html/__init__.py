"""Reports as a page for the browser, one file that needs nothing else.

panel, signals, panels   the depth profiles: what is drawn over depth
causes, steps, symmetry, repairs, advice, forecasted   the other sections
overlay, compared        two profiles in one chart, two reports on one page
carried                  the record inside of the page
notebook                 the same in small, without scripts
article                  one report, ready for the template
page                     template, scripts, styles and data in one file
"""

from __future__ import annotations

from collections.abc import Sequence

from leadline.records import Forecast
from leadline.records.repair import RepairReport
from leadline.records.report import Report
from leadline.report.html.article import Article, article
from leadline.report.html.page import fill

__all__ = ["render", "render_repair"]


def render(reports: Sequence[Report], forecast: Forecast | None = None) -> str:
    """Reports as a page, one below the other. `forecast`: of the family that the first one's model is of."""
    return _page([article(each, forecast=None if place else forecast) for place, each in enumerate(reports)])


def render_repair(repair: RepairReport) -> str:
    """The report of the model as it was, with what was tried on it, and its profiles before and after."""
    return _page([article(repair.before, repair)])


def _page(articles: Sequence[Article]) -> str:
    first = articles[0].report if articles else None
    title = f"{articles[0].title}: {first.target or first.profile.model}" if first else "Leadline"
    return fill("reports.html", [each.data for each in articles], articles=articles, title=title)
