"""Results on disk, one JSON file a benchmark, and the tables made of them in the docs."""

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
    """What has been measured so far; no cases if nothing has."""
    path = RESULTS / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else {"machine": machine(), "cases": {}}


def save(name: str, results: Results) -> None:
    """Replace the file at once, so that an interrupted benchmark leaves either the old or the new one."""
    RESULTS.mkdir(exist_ok=True)
    fresh = RESULTS / f"{name}.json.part"
    fresh.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n")
    os.replace(fresh, RESULTS / f"{name}.json")


def run_missing(name: str, cases: dict[str, Callable[[], Any]], say: Callable[[str], None]) -> Results:
    """Measure the cases that have no result yet, keeping each as soon as it is there."""
    results = load(name)
    for key, measure in cases.items():
        if key not in results["cases"]:
            say(key)
            results["cases"][key] = measure()
            save(name, results)
    return results


def fill(page: str, mark: str, content: str) -> str:
    """The page with `content` between its two comments `begin mark` and `end mark`."""
    begin, end = f"<!-- begin {mark} -->", f"<!-- end {mark} -->"
    if page.count(begin) != 1 or page.count(end) != 1:
        raise ValueError(f"expected {begin} and {end} once each in the page")
    head, _, rest = page.partition(begin)
    _, _, tail = rest.partition(end)
    return f"{head}{begin}\n\n{content.strip()}\n\n{end}{tail}"


def fill_file(path: Path, mark: str, content: str) -> None:
    path.write_text(fill(path.read_text(), mark, content))


def table(header: list[str], rows: list[list[str]]) -> str:
    """A Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
