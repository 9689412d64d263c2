"""How records look when Python, rich or a notebook shows them: the other side of `leadline.records.display`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from rich.text import Text

from leadline.records import Forecast, RateScan
from leadline.records.repair import RepairReport
from leadline.records.report import Report
from leadline.report.charts.drawing import to_png, to_svg
from leadline.report.look import Look
from leadline.report.pages import page_of
from leadline.report.pages.report import report_page
from leadline.report.pictures import rates_picture, verdict_picture
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


def picture(record: Report | RateScan, form: Literal["svg", "png"]) -> bytes:
    """The one picture of a record, as SVG or PNG."""
    drawing = verdict_picture(record) if isinstance(record, Report) else rates_picture(record)
    return to_svg(drawing).encode() if form == "svg" else to_png(drawing)


def html_page(record: Report | RepairReport, forecast: Forecast | None = None) -> str:
    """One self-contained page for the browser; `forecast`: of the family that a report's model belongs to."""
    # Imported here because jinja2 and markdown-it are slow to import, and print(report) needs neither.
    from leadline.report.render import html

    page = report_page(record, forecast) if isinstance(record, Report) else page_of(record)
    return html.render([page])
