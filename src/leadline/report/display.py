"""How each kind of record looks as text, as a notebook card and as an HTML page. Records come here to be shown."""

from __future__ import annotations

from collections.abc import Iterable
from functools import singledispatch

from rich.text import Text

from leadline.records import Forecast, Update
from leadline.records.repair import RepairReport
from leadline.records.report import Report
from leadline.report import repair as repair_page
from leadline.report import terminal
from leadline.report.html import render, render_repair
from leadline.report.html.notebook import card_of, repair_card
from leadline.report.layout import Look
from leadline.report.notebook_cards import forecast_card, update_card


def text_page(record: Report | RepairReport) -> str:
    """A page of plain text, 80 columns wide."""
    rendered = (
        repair_page.render(record, Look())
        if isinstance(record, RepairReport)
        else terminal.render(record, Look())
    )
    return rendered.rstrip("\n")


def rich_lines(record: Report | RepairReport, width: int) -> Iterable[Text]:
    """The same page in color, as wide as the console."""
    if isinstance(record, RepairReport):
        return repair_page.lines(record, Look(width=width))
    return terminal.lines(record, Look(width=width))


@singledispatch
def notebook_card(record: object) -> str:
    """A small page of HTML for the cell of a notebook."""
    raise TypeError(f"no notebook card for {type(record).__name__}")


notebook_card.register(Report, card_of)
notebook_card.register(RepairReport, repair_card)
notebook_card.register(Update, update_card)
notebook_card.register(Forecast, forecast_card)


def html_page(record: Report | RepairReport, forecast: Forecast | None = None) -> str:
    """One self-contained page for the browser; `forecast` is that of the model's family, if there is one."""
    return render_repair(record) if isinstance(record, RepairReport) else render([record], forecast)
