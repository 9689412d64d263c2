"""text: a page for the terminal, one for each report."""

from __future__ import annotations

from collections.abc import Sequence

from leadline.records.report import Report
from leadline.report.layout import Look
from leadline.report.terminal import render
from leadline.text import clean


def text(reports: Sequence[Report], look: Look) -> str:
    """The page alone; if there are several, each under the name of its target."""
    if len(reports) == 1:
        return render(reports[0], look)
    return "\n".join(
        f"── {clean(each.target or each.profile.model)}\n{render(each, look)}" for each in reports
    )
