"""Reports as a page for the browser, one file that needs nothing else.

panel, signals, panels   the depth profiles: what is drawn over depth
causes, steps, symmetry, repairs, advice   the other sections
article                  one report, ready for the template
page                     template, scripts, styles and data in one file
"""

from __future__ import annotations

from collections.abc import Sequence

from leadline.records import Outcome
from leadline.report.html.article import article
from leadline.report.html.page import fill
from leadline.report.report import Report

__all__ = ["render"]


def render(reports: Sequence[Report], outcomes: Sequence[Outcome] = ()) -> str:
    """The page. `outcomes` are the fixes that were tried on the first report's model."""
    articles = [article(each, () if place else outcomes) for place, each in enumerate(reports)]
    title = (
        f"{articles[0].title}: {reports[0].target or reports[0].profile.model}" if articles else "Leadline"
    )
    return fill("reports.html", [each.data for each in articles], articles=articles, title=title)
