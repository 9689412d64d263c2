"""The formats a report can be written in: a file each, found in one table.

A format is a pure function of reports and of how they are to be shown. It never decides anything: what counts and what
fails is in the reports, and the exit code is made of these.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from leadline.records.report import Report
from leadline.report.formats.github import github
from leadline.report.formats.html import html
from leadline.report.formats.jsonl import jsonl
from leadline.report.formats.junit import junit
from leadline.report.formats.md import md
from leadline.report.formats.record import record
from leadline.report.formats.sarif import sarif
from leadline.report.formats.text import text
from leadline.report.layout import Look

Format = Callable[[Sequence[Report], Look], str]

FORMATS: Mapping[str, Format] = {
    "text": text,
    "json": record,
    "jsonl": jsonl,
    "github": github,
    "sarif": sarif,
    "junit": junit,
    "md": md,
    "html": html,
}
