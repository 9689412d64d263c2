"""Records that were saved as JSON: recognized by their schema, read, and written in the formats of their kind."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import msgspec

from leadline.errors import SchemaError
from leadline.records import FORECAST_SCHEMA, Forecast, parse
from leadline.records.repair import REPAIR_SCHEMA, RepairReport
from leadline.records.report import REPORT_SCHEMA, Report
from leadline.report.formats import FORECAST_FORMATS, FORMATS, REPAIR_FORMATS
from leadline.report.look import Look
from leadline.text import clean

Kind = tuple[Callable[[str], Any], Mapping[str, Callable[[Any, Look], str]]]
"""How a record is read, and how it is written by the name of the format."""

KINDS: dict[str, Kind] = {
    REPAIR_SCHEMA: (RepairReport.from_json, REPAIR_FORMATS),
    FORECAST_SCHEMA: (Forecast.from_json, FORECAST_FORMATS),
}
"""By schema. A record of an unknown schema is read as a report."""


def formats_of(text: str, look: Look, kinds: Mapping[str, Kind] = KINDS) -> dict[str, Callable[[], str]]:
    """By name, the formats in which a saved record can be written. Raises SchemaError if it is not a record."""
    data = _loaded(text)
    schema = _schema_of(data, kinds)
    read, formats = kinds.get(schema, (read_reports, FORMATS))
    # names in a report are cleaned where they are written: a baseline compares them as they are
    record = read(json.dumps(_cleaned(data)) if schema else text)
    return {name: partial(write, record, look) for name, write in formats.items()}


def read_reports(text: str) -> tuple[Report, ...]:
    """The reports of a file that holds one report or an array of them."""
    if not text.lstrip().startswith("["):
        return (Report.from_json(text),)
    saved = parse(text)
    if not saved:
        raise SchemaError("an empty list: there is no report in it")
    return tuple(Report.from_json(json.dumps(each)) for each in saved)


def _loaded(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _cleaned(data: Any) -> Any:
    """`data` without control characters and surrogates: a saved file may come from anybody."""
    if isinstance(data, str):
        return "\n".join(map(clean, data.split("\n")))
    if isinstance(data, list):
        return [_cleaned(each) for each in data]
    if isinstance(data, dict):
        return {_cleaned(key): _cleaned(each) for key, each in data.items()}
    return data


def _schema_of(saved: Any, kinds: Mapping[str, Kind]) -> str:
    """The schema of the same kind that this version writes, for any version that was saved."""
    named = str(saved.get("schema")) if isinstance(saved, dict) else ""
    return next((known for known in kinds if _kind(known) == _kind(named)), "")


def _kind(schema: str) -> str:
    return schema.partition("/")[0]


# The JSON Schema of a report, made from the types of the record.

NON_FINITE = ["NaN", "Infinity", "-Infinity"]
DIALECT = "https://json-schema.org/draft/2020-12/schema"


def report_schema() -> dict[str, Any]:
    """What `leadline check --format json` writes for one target, as JSON Schema."""
    schema = _with_non_finite(
        msgspec.json.schema(Report, schema_hook=lambda kind: {"description": "never written"})
    )
    del schema["$defs"]["Report"]["properties"]["unsaved_trace"]
    schema["$defs"]["Report"]["properties"]["schema"] = {"const": REPORT_SCHEMA}
    return {"$schema": DIALECT, "title": REPORT_SCHEMA, **schema}


def _with_non_finite(part: Any) -> Any:
    """`part`, in which every number may also be the name of a non-finite one, which JSON cannot write."""
    if isinstance(part, list):
        return [_with_non_finite(each) for each in part]
    if not isinstance(part, dict):
        return part
    if part.get("type") == "number":
        return {"anyOf": [part, {"enum": NON_FINITE}]}
    return {key: _with_non_finite(each) for key, each in part.items()}
