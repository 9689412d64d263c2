"""Measure the size of report pages and how soon a browser shows them.

    python -m benchmarks.report_page            measure what has no result yet, fill docs/reference/report.md

Each network is built and checked, and its report is written to a file, whose size is measured. Chromium opens the file
offline (see `make test-browser`). First paint is the browser's `first-contentful-paint`; the page is ready when the
last chart is drawn. Both are counted from the start of the navigation, and are medians over several openings.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

import leadline
from benchmarks.result_files import ROOT, Results, fill_file, run_missing, table
from leadline.lab.demo import deep_mlp
from leadline.nn import LanguageModel
from leadline.records.report import Report
from leadline.report.pages.report import report_page
from leadline.report.render import html

# Heuristic: odd, so that one opening is the median.
OPENINGS = 9
CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or "chromium"
READY = "performance.getEntriesByName('drawn').length > 0"
TIMES = """() => ({
    paint: performance.getEntriesByName('first-contentful-paint')[0].startTime,
    ready: performance.getEntriesByName('drawn')[0].startTime,
})"""


def demo_report() -> Report:
    torch.manual_seed(0)
    case = deep_mlp()
    return leadline.check(case.model, case.inputs, case.targets, case.loss, case.optimizer)


def transformer_report(depth: int) -> Report:
    """A language model of `depth` blocks, each two residual sub-layers of the depth axis."""
    torch.manual_seed(0)
    model = LanguageModel(64, 32, 2, depth, max_len=16)
    tokens = torch.randint(64, (2, 16))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def loss(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())

    return leadline.check(model, tokens, tokens, loss, optimizer)


CASES: dict[str, Callable[[], Report]] = {
    "MLP, 60 layers": demo_report,
    "Transformer, 12 blocks": partial(transformer_report, 12),
    "Transformer, 1000 blocks": partial(transformer_report, 1000),
}


def measure(build: Callable[[], Report]) -> dict[str, Any]:
    report = build()
    start = time.process_time()
    page = html.render([report_page(report)])
    seconds = time.process_time() - start
    timings = [_open_in_browser(page) for _ in range(OPENINGS)]
    return {
        "places": len(report.profile.blocks),
        "kilobytes": round(len(page.encode()) / 1000),
        "record_kilobytes": round(len(report.to_json()) / 1000),
        "render_seconds": round(seconds, 2),
        "paint_ms": round(statistics.median(each["paint"] for each in timings)),
        "ready_ms": round(statistics.median(each["ready"] for each in timings)),
    }


def _open_in_browser(page: str) -> dict[str, float]:
    """Milliseconds until the first paint, and until all charts were drawn."""
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        path = Path(folder) / "page.html"
        path.write_text(page, encoding="utf-8")
        arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=arguments)
        tab = browser.new_context(viewport={"width": 1200, "height": 900}, offline=True).new_page()
        tab.goto(path.as_uri())
        tab.wait_for_function(READY)
        tab.wait_for_function("performance.getEntriesByName('first-contentful-paint').length > 0")
        times: dict[str, float] = tab.evaluate(TIMES)
        browser.close()
    return times


def render_table(results: Results) -> str:
    header = [
        "report of",
        "blocks",
        "page",
        "its record alone",
        "rendered in",
        "first paint",
        "all charts drawn",
    ]
    rows = [
        [
            name,
            str(case["places"]),
            f"{case['kilobytes']} kB",
            f"{case['record_kilobytes']} kB",
            f"{case['render_seconds']} s",
            f"{case['paint_ms']} ms",
            f"{case['ready_ms']} ms",
        ]
        for name, case in results["cases"].items()
    ]
    return table(header, rows)


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    torch.set_num_threads(1)
    results = run_missing("page", {name: partial(measure, build) for name, build in CASES.items()}, print)
    fill_file(ROOT / "docs" / "reference" / "report.md", "page", render_table(results))


if __name__ == "__main__":
    main()
