"""The formats a report can be written in: a name and a function each."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from leadline.report.look import Look
from leadline.report.report import Report
from leadline.report.terminal import render

Format = Callable[[Report, Look], str]


def as_json(report: Report, look: Look) -> str:
    """The whole record; how it is to look does not matter."""
    return report.to_json() + "\n"


FORMATS: Mapping[str, Format] = {"text": render, "json": as_json}
