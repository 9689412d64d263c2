"""json: the whole record, from which `leadline report` can make every other format."""

from __future__ import annotations

import json
from collections.abc import Sequence

from leadline.errors import SchemaError
from leadline.records import parse
from leadline.records.report import Report
from leadline.report.layout import Look


def record(reports: Sequence[Report], look: Look) -> str:
    """One report as an object, several as an array with one on each line. How it is to look does not matter."""
    if len(reports) == 1:
        return reports[0].to_json() + "\n"
    return "[\n" + ",\n".join(each.to_json() for each in reports) + "\n]\n"


def read_reports(text: str) -> tuple[Report, ...]:
    """The reports that `record` wrote."""
    if not text.lstrip().startswith("["):
        return (Report.from_json(text),)
    saved = parse(text)
    if not saved:
        raise SchemaError("an empty list: there is no report in it")
    return tuple(Report.from_json(json.dumps(each)) for each in saved)
