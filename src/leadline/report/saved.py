"""What was saved as JSON, told apart by its schema and written again in the formats of its kind."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from leadline.records import FORECAST_SCHEMA, Forecast
from leadline.records.repair import REPAIR_SCHEMA, RepairReport
from leadline.report.forecast import render as render_forecast
from leadline.report.formats import FORMATS
from leadline.report.formats.record import read_reports
from leadline.report.html.forecasted import render_forecast as forecast_page
from leadline.report.layout import Look
from leadline.report.repair_formats import REPAIR_FORMATS
from leadline.text import clean

FORECAST_FORMATS: dict[str, Callable[[Forecast, Look], str]] = {
    "text": render_forecast,
    "json": lambda forecast, look: forecast.to_json() + "\n",
    "html": lambda forecast, look: forecast_page(forecast),
}

Kind = tuple[Callable[[str], Any], Mapping[str, Callable[[Any, Look], str]]]
"""How a record is read, and how it is written by the name of the format."""

KINDS: dict[str, Kind] = {
    REPAIR_SCHEMA: (RepairReport.from_json, REPAIR_FORMATS),
    FORECAST_SCHEMA: (Forecast.from_json, FORECAST_FORMATS),
}
"""By schema. A record of no known schema is read as a report."""


def formats_of(text: str, look: Look, kinds: Mapping[str, Kind] = KINDS) -> dict[str, Callable[[], str]]:
    """By name, the ways in which what was saved can be written. Raises SchemaError if it is no record of ours."""
    data = _loaded(text)
    schema = _schema_of(data, kinds)
    read, written = kinds.get(schema, (read_reports, FORMATS))
    # names in a report are cleaned where they are written: they are also what a baseline compares
    saved = read(json.dumps(_spelled_out(data)) if schema else text)
    return {name: partial(write, saved, look) for name, write in written.items()}


def _loaded(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _spelled_out(data: Any) -> Any:
    """The same, without a character that a terminal would obey or nobody could write: a saved file may be anybody's."""
    if isinstance(data, str):
        return "\n".join(map(clean, data.split("\n")))
    if isinstance(data, list):
        return [_spelled_out(each) for each in data]
    if isinstance(data, dict):
        return {_spelled_out(key): _spelled_out(each) for key, each in data.items()}
    return data


def _schema_of(saved: Any, kinds: Mapping[str, Kind]) -> str:
    """The schema that this program writes of the kind that was named, of whatever version."""
    named = str(saved.get("schema")) if isinstance(saved, dict) else ""
    return next((known for known in kinds if _kind(known) == _kind(named)), "")


def _kind(schema: str) -> str:
    return schema.partition("/")[0]
