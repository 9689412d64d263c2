"""The JSON Schema of a report, made of the record's own types."""

from __future__ import annotations

from typing import Any

import msgspec

from leadline.records.report import REPORT_SCHEMA, Report

NOT_FINITE = ["NaN", "Infinity", "-Infinity"]
DIALECT = "https://json-schema.org/draft/2020-12/schema"


def report_schema() -> dict[str, Any]:
    """What `leadline check --format json` writes for one target, as JSON Schema."""
    made = _spelled(msgspec.json.schema(Report, schema_hook=lambda kind: {"description": "never written"}))
    del made["$defs"]["Report"]["properties"]["unsaved_trace"]
    made["$defs"]["Report"]["properties"]["schema"] = {"const": REPORT_SCHEMA}
    return {"$schema": DIALECT, "title": REPORT_SCHEMA, **made}


def _spelled(part: Any) -> Any:
    """`part`, in which every number may also be the name of one that JSON cannot write."""
    if isinstance(part, list):
        return [_spelled(each) for each in part]
    if not isinstance(part, dict):
        return part
    if part.get("type") == "number":
        return {"anyOf": [part, {"enum": NOT_FINITE}]}
    return {key: _spelled(each) for key, each in part.items()}
