"""Check every stock architecture that can be built here.

    python -m benchmarks.zoo                  measure architectures without a result, fill docs/lab-notes/zoo.md
    python -m benchmarks.zoo --only hf/bert   measure these again (names, or prefixes of names)
    python -m benchmarks.zoo --again crashed  measure again those with this status, finding or verdict
    python -m benchmarks.zoo --show           only fill the page

The results are stored in benchmarks/results/zoo.json. Install the packages with
pip install -r benchmarks/zoo/requirements.txt and pip install --no-deps -r benchmarks/zoo/no-deps.txt; architectures of
packages that are not installed are skipped.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter

from benchmarks.result_files import ROOT, Results, fill_file, load, save
from benchmarks.zoo.collection import SOURCES, names
from benchmarks.zoo.measure import Cell
from benchmarks.zoo.page import MARKS
from benchmarks.zoo.worker import measure_all

NAME = "zoo"


def select_names(results: Results, known: list[str], only: list[str], again: list[str]) -> list[str]:
    """Return the names to measure now; without a choice, those that have no result."""
    cells = results["cases"]
    if only:
        return [name for name in known if any(name == each or name.startswith(f"{each}/") for each in only)]
    if again:
        return [
            name for name in known if name in cells and any(_matches(cells[name], each) for each in again)
        ]
    return [name for name in known if name not in cells]


def _matches(cell: Cell, value: str) -> bool:
    return value in (cell["status"], cell.get("verdict")) or any(
        each[0] == value for each in cell.get("findings", ())
    )


def sweep(names: list[str], minutes: float) -> None:
    """Measure these architectures and store each result at once; stop after this many minutes."""
    deadline = time.monotonic() + 60 * minutes
    for name, cell in measure_all(names):
        results = load(NAME)  # another sweep may have added results
        results["cases"][name] = cell
        save(NAME, results)
        print(f"{name:40} {cell['status']:10} {cell.get('verdict', cell.get('reason', ''))[:90]}", flush=True)
        if time.monotonic() > deadline:
            break


def store_counts(known: list[str]) -> None:
    """Store how many architectures each source has, measured or not."""
    results = load(NAME)
    counts = Counter(name.partition("/")[0] for name in known)
    results["exhibits"] = {**results.get("exhibits", {}), **counts}
    save(NAME, results)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", default=[], help="names of architectures, or prefixes")
    parser.add_argument("--again", nargs="+", default=[], help="statuses, verdicts or codes to measure again")
    parser.add_argument("--source", nargs="+", default=list(SOURCES), help="packages to choose from")
    parser.add_argument("--minutes", type=float, default=1e6)
    parser.add_argument("--most", type=int, default=None, help="measure at most this many")
    parser.add_argument("--show", action="store_true", help="only fill the page")
    options = parser.parse_args()
    if not options.show:
        known = names(options.source)
        store_counts(known)
        sweep(select_names(load(NAME), known, options.only, options.again)[: options.most], options.minutes)
    for mark, render in MARKS.items():
        fill_file(ROOT / "docs" / "lab-notes" / "zoo.md", mark, render(load(mark)))


if __name__ == "__main__":
    main()
