"""JSON lines: one finding per line, for tools that filter and count."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import msgspec

from leadline.records import Finding, spell
from leadline.records.report import Report
from leadline.report.place import place_of
from leadline.report.verdict import by_severity


def render(reports: Sequence[Report]) -> str:
    """Every finding that counts, the worst first, with its target and source; nothing if there is none."""
    rows = [_row(report, finding) for report in reports for finding in by_severity(report.findings)]
    return "".join(json.dumps(spell(row), allow_nan=False, separators=(",", ":")) + "\n" for row in rows)


def _row(report: Report, finding: Finding) -> dict[str, Any]:
    place = place_of(report, finding)
    return {
        "target": report.target,
        "model": report.profile.model,
        **msgspec.to_builtins(finding),
        "file": None if place is None else place.file,
        "line": None if place is None else place.line,
    }
