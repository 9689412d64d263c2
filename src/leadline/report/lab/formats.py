"""The formats in which experiments are written."""

from __future__ import annotations

from collections.abc import Callable

from leadline.records import Lab
from leadline.report.lab.document import document
from leadline.report.lab.page import render_page
from leadline.report.lab.terminal import render_lab
from leadline.report.look import Look

LAB_FORMATS: dict[str, Callable[[Lab, Look], str]] = {
    "text": render_lab,
    "json": lambda lab, look: lab.to_json() + "\n",
    "html": lambda lab, look: render_page(lab),
    "md": lambda lab, look: document(lab),
}
