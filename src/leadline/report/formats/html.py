"""html: one self-contained page with charts, for a browser."""

from __future__ import annotations

from collections.abc import Sequence

from leadline.records.report import Report
from leadline.report.layout import Look


def html(reports: Sequence[Report], look: Look) -> str:
    """All reports on one page. How it is to look on a terminal does not matter."""
    from leadline.report.html import render  # here: templates are loaded only if a page is asked for

    return render(reports)
