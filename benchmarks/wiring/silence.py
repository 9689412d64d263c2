"""Ask the wiring checks about every architecture of the zoo: all are healthy, so every warning must be explained.

    python -m benchmarks.wiring.silence              check what has no stored answer; resumable
    python -m benchmarks.wiring.silence --only hf/bert hf/git    check these again (names, or prefixes of names)
    python -m benchmarks.wiring.silence --render     only fill docs/lab-notes/wiring.md

The measured step and the probes run, because they are all that the wiring checks read; the rehearsal does not. Each
architecture is built a second time in memory that is filled with NaN. Results: benchmarks/results/wiring_silence.json.
"""

from __future__ import annotations

import argparse
import sys

from benchmarks.result_files import ROOT, Results, fill_file, load, save, table
from benchmarks.zoo.architecture import Architecture
from benchmarks.zoo.collection import SOURCES, names
from benchmarks.zoo.measure import Cell, error_location, error_text, plain_pass
from benchmarks.zoo.worker import measure_all
from leadline.checks._diagnosis import check_case
from leadline.errors import InputError
from leadline.readings.wiring.memory import Rebuild
from leadline.tracer.inputs import unwrap

RESULTS = "wiring_silence"
# Heuristic: enough to recognize a message in a table.
MAX_MESSAGE_CHARACTERS = 300


def ask(architecture: Architecture) -> Cell:
    """The wiring findings, and which questions could not be asked; never raise an exception."""
    try:
        case = architecture.case()
        plain_pass(case)
        case.model.zero_grad()
    except Exception as error:  # a third-party package may raise anything
        return {"status": "not built", "reason": error_text(error)}
    cell: Cell = {"origin": architecture.origin, "model": type(unwrap(case.model)).__name__}
    try:
        report = check_case(case, rehearse=False, rebuild=Rebuild(make=architecture.case, seconds=0.0))
    except InputError as error:
        return {**cell, "status": "refused", "reason": error_text(error)}
    except Exception as error:  # a bug in Leadline, which this sweep looks for
        return {**cell, "status": "crashed", "reason": error_text(error), "where": error_location(error)}
    wiring = [each for each in report.findings if each.code.startswith("D")]
    return {
        **cell,
        "status": "ran",
        "findings": {
            each.name: f"{each.where}: {each.message}"[:MAX_MESSAGE_CHARACTERS]
            for each in wiring
            if each.severity != "info"
        },
        "notes": sorted({each.name for each in wiring if each.severity == "info"}),
        "not_asked": [f"{gap.what}: {gap.why}"[:MAX_MESSAGE_CHARACTERS] for gap in report.coverage.gaps],
    }


def sweep(only: list[str]) -> None:
    stored = load(RESULTS)["cases"]
    # transformers last: it has three quarters of the names
    known = sorted(names(), key=lambda name: name.startswith("hf/"))
    if only:
        chosen = [name for name in known if any(name == each or name.startswith(f"{each}/") for each in only)]
    else:
        chosen = [name for name in known if name not in stored]
    for name, cell in measure_all(chosen, ask):
        results = load(RESULTS)
        results["cases"][name] = cell
        save(RESULTS, results)
        said = ", ".join(cell.get("findings", ())) or cell.get("reason", "")
        print(f"{name:40} {cell['status']:10} {said[:90]}", flush=True)


STATUSES = ("ran", "refused", "crashed", "too slow", "not built")


def render(results: Results) -> str:
    """The counts by package, and every finding at warning or above."""
    cases = results["cases"]
    by_source = {
        source: [cell for name, cell in cases.items() if name.startswith(f"{source}/")] for source in SOURCES
    }
    counts = table(
        ["names begin with", "tried", *STATUSES, "silent"],
        [_count_row(source, cells) for source, cells in (*by_source.items(), ("**all**", [*cases.values()]))],
    )
    warned = [
        [f"`{name}`", finding, text]
        for name, cell in sorted(cases.items())
        for finding, text in cell.get("findings", {}).items()
    ]
    return f"{counts}\n\n{table(['architecture', 'finding', 'message'], warned)}" if warned else counts


def _count_row(source: str, cells: list[Cell]) -> list[str]:
    states = [sum(cell["status"] == each for cell in cells) for each in STATUSES]
    silent = sum(cell["status"] == "ran" and not cell["findings"] for cell in cells)
    return [source, *map(str, (len(cells), *states, silent))]


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.wiring.silence")
    parser.add_argument("--only", nargs="+", default=[], help="names of architectures, or prefixes")
    parser.add_argument("--render", action="store_true", help="only fill the page")
    options = parser.parse_args(arguments)
    if not options.render:
        sweep(options.only)
    fill_file(ROOT / "docs" / "lab-notes" / "wiring.md", RESULTS, render(load(RESULTS)))


if __name__ == "__main__":
    main(sys.argv[1:])
