"""The formats of a repair, functions of its record: what `leadline fix` writes and `leadline report` shows again."""

from __future__ import annotations

from collections.abc import Callable

from leadline.report.html import render_repair
from leadline.report.look import Look
from leadline.report.mending import render
from leadline.report.mending_md import to_markdown
from leadline.report.repair import RepairReport

REPAIR_FORMATS: dict[str, Callable[[RepairReport, Look], str]] = {
    "text": render,
    "json": lambda repair, look: repair.to_json() + "\n",
    "md": lambda repair, look: to_markdown(repair),
    "html": lambda repair, look: render_repair(repair),
}
