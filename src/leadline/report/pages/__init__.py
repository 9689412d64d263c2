"""One page builder per kind of record: the only place that decides what is shown of it."""

from __future__ import annotations

from functools import singledispatch

from leadline.records import Forecast, Trace, Update
from leadline.records.repair import RepairReport
from leadline.records.report import Report
from leadline.report.page import Page
from leadline.report.pages.forecast import forecast_page
from leadline.report.pages.repair import repair_page
from leadline.report.pages.report import report_page
from leadline.report.pages.step import update_page
from leadline.report.pages.trace import trace_page


@singledispatch
def page_of(record: object) -> Page:
    """What is shown of a record."""
    raise TypeError(f"there is no page for {type(record).__name__}")


page_of.register(Report, report_page)
page_of.register(RepairReport, repair_page)
page_of.register(Forecast, forecast_page)
page_of.register(Update, update_page)
page_of.register(Trace, trace_page)
