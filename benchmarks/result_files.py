"""Results on disk, one JSON file per benchmark, and the tables in the docs that are made from them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.timing import machine

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"

Results = dict[str, Any]


def load(name: str) -> Results:
    """Return the stored results, without cases if there are none."""
    path = RESULTS / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else {"machine": machine(), "cases": {}}


def save(name: str, results: Results) -> None:
    """Replace the file in one step, so that an interrupted benchmark leaves either the old or the new file."""
    RESULTS.mkdir(exist_ok=True)
    fresh = RESULTS / f"{name}.json.part"
    fresh.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n")
    os.replace(fresh, RESULTS / f"{name}.json")


def run_missing(name: str, cases: dict[str, Callable[[], Any]], say: Callable[[str], None]) -> Results:
    """Measure the cases without a result, and save each as soon as it is finished."""
    results = load(name)
    for key, measure in cases.items():
        if key not in results["cases"]:
            say(key)
            results["cases"][key] = measure()
            save(name, results)
    return results


def fill(page: str, mark: str, content: str) -> str:
    """Return the page with `content` between its comments `begin mark` and `end mark`."""
    begin, end = f"<!-- begin {mark} -->", f"<!-- end {mark} -->"
    if page.count(begin) != 1 or page.count(end) != 1:
        raise ValueError(f"expected {begin} and {end} once each in the page")
    head, _, rest = page.partition(begin)
    _, _, tail = rest.partition(end)
    return f"{head}{begin}\n\n{content.strip()}\n\n{end}{tail}"


def fill_file(path: Path, mark: str, content: str) -> None:
    path.write_text(fill(path.read_text(), mark, content))


def table(header: list[str], rows: list[list[str]]) -> str:
    """Return a Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
