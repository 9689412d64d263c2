"""Check every stock architecture that can be built here.

    python -m benchmarks.zoo                  measure what has no result yet, fill docs/lab-notes/zoo.md
    python -m benchmarks.zoo --only hf/bert   measure these again (names, or beginnings of names)
    python -m benchmarks.zoo --again crashed  measure again what had this status, or finding, or verdict
    python -m benchmarks.zoo --show           fill the page from what is there

Results: benchmarks/results/zoo.json. Packages beyond '.[dev]': pip install -e '.[zoo]' and
pip install --no-deps -r benchmarks/zoo/no-deps.txt; what is not installed is left out.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter

from benchmarks.result_files import ROOT, Results, fill_file, load, save
from benchmarks.zoo.collection import WINGS, names
from benchmarks.zoo.measure import Cell
from benchmarks.zoo.page import MARKS
from benchmarks.zoo.worker import measured

NAME = "zoo"


def wanted(results: Results, known: list[str], only: list[str], again: list[str]) -> list[str]:
    """Of all names, those to measure now: without a choice, the ones that have no result."""
    cells = results["cases"]
    if only:
        return [name for name in known if any(name == each or name.startswith(f"{each}/") for each in only)]
    if again:
        return [name for name in known if name in cells and any(_has(cells[name], each) for each in again)]
    return [name for name in known if name not in cells]


def _has(cell: Cell, what: str) -> bool:
    return what in (cell["status"], cell.get("verdict")) or any(
        each[0] == what for each in cell.get("findings", ())
    )


def sweep(names: list[str], minutes: float) -> None:
    """Measure these, keeping each result as soon as it is there; stops after so many minutes."""
    until = time.monotonic() + 60 * minutes
    for name, cell in measured(names):
        results = load(NAME)  # another sweep may have added to it meanwhile
        results["cases"][name] = cell
        save(NAME, results)
        print(f"{name:40} {cell['status']:10} {cell.get('verdict', cell.get('reason', ''))[:90]}", flush=True)
        if time.monotonic() > until:
            break


def note_known(known: list[str]) -> None:
    """Write down how many exhibits there are, tried or not, by what their names begin with."""
    results = load(NAME)
    counts = Counter(name.partition("/")[0] for name in known)
    results["exhibits"] = {**results.get("exhibits", {}), **counts}
    save(NAME, results)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", default=[], help="names of exhibits, or their beginnings")
    parser.add_argument("--again", nargs="+", default=[], help="statuses, verdicts or codes to measure again")
    parser.add_argument("--wing", nargs="+", default=list(WINGS), help="beginnings of names to choose from")
    parser.add_argument("--minutes", type=float, default=1e6)
    parser.add_argument("--most", type=int, default=None, help="exhibits to measure")
    parser.add_argument("--show", action="store_true", help="measure nothing")
    asked = parser.parse_args()
    if not asked.show:
        known = names(asked.wing)
        note_known(known)
        sweep(wanted(load(NAME), known, asked.only, asked.again)[: asked.most], asked.minutes)
    for mark, render in MARKS.items():
        fill_file(ROOT / "docs" / "lab-notes" / "zoo.md", mark, render(load(mark)))


if __name__ == "__main__":
    main()
