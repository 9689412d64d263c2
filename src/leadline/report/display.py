"""How records look when Python, rich or a notebook shows them: the other side of `leadline.records.display`."""

from __future__ import annotations

from collections.abc import Iterable

from rich.text import Text

from leadline.records import Forecast
from leadline.records.repair import RepairReport
from leadline.records.report import Report
from leadline.report.look import Look
from leadline.report.pages import page_of
from leadline.report.pages.report import report_page
from leadline.report.render import notebook, text


def text_page(record: object) -> str:
    """A page of plain text, 80 columns wide."""
    return text.render(page_of(record), Look()).rstrip("\n")


def rich_lines(record: object, width: int) -> Iterable[Text]:
    """The same page in color, as wide as the console."""
    return text.lines(page_of(record), Look(width=width))


def notebook_card(record: object) -> str:
    """A small page of HTML for the cell of a notebook."""
    return notebook.render(page_of(record))


def html_page(record: Report | RepairReport, forecast: Forecast | None = None) -> str:
    """One self-contained page for the browser; `forecast`: of the family that a report's model belongs to."""
    # Imported here because jinja2 and markdown-it are slow to import, and print(report) needs neither.
    from leadline.report.render import html

    page = report_page(record, forecast) if isinstance(record, Report) else page_of(record)
    return html.render([page])
