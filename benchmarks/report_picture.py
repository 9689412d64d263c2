"""Take the picture of the report page in the docs: the bundled failing network in chromium, with the cursor at a block.

    python -m benchmarks.report_picture

The text of the picture is stored in benchmarks/results/picture.json, so that a test notices if the page changes.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import msgspec
import torch

from benchmarks.report_page import CHROMIUM, READY, demo_report
from benchmarks.result_files import ROOT, save
from leadline.records.report import Report
from leadline.report.pages.report import report_page
from leadline.report.render import html
from leadline.report.verdict import headline

PICTURE = ROOT / "docs" / "images" / "report.png"
# Heuristic: pixels; the top of the page up to the first chart.
WIDTH, HEIGHT = 1000, 1135
# Heuristic: the block that the cursor points at, about the middle of the stack.
CURSOR_BLOCK = 35


def pictured_report() -> Report:
    """Return the report as the command line makes it, with its target."""
    return msgspec.structs.replace(demo_report(), target="leadline.lab.demo:deep_mlp")


def page_text(report: Report) -> dict[str, Any]:
    """Return the text at the top of the page."""
    return {"headline": headline(report), "confidence": report.confidence}


def take_picture(report: Report) -> None:
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        path = Path(folder) / "page.html"
        path.write_text(html.render([report_page(report)]), encoding="utf-8")
        arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=arguments)
        tab = browser.new_context(viewport={"width": WIDTH, "height": HEIGHT}, offline=True).new_page()
        tab.goto(path.as_uri())
        tab.wait_for_function(READY)
        box = tab.locator(".u-over").first.bounding_box()
        if box is not None:
            share = CURSOR_BLOCK / (len(report.profile.blocks) - 1)
            tab.mouse.move(box["x"] + share * box["width"], box["y"] + box["height"] / 2)
        tab.screenshot(path=PICTURE)
        browser.close()


def main() -> None:
    torch.set_num_threads(1)
    report = pictured_report()
    take_picture(report)
    save("picture", page_text(report))


if __name__ == "__main__":
    main()
