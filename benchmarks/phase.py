"""Measure the three phase diagrams on the digits, and how well theory separates the networks that train.

    python -m benchmarks.phase                 measure missing columns, fill docs/lab-notes/phase.md
    python -m benchmarks.phase --seconds 500   start no further columns after this time
    python -m benchmarks.phase --table         only fill docs/lab-notes/phase.md and draw its pictures

Columns are stored in benchmarks/results/phase_cells.jsonl as they finish, the diagrams in phase.json next to it.
"""

from __future__ import annotations

import argparse
import json

import torch

from benchmarks.result_files import RESULTS, ROOT, Results, fill_file, load, save, table
from benchmarks.time_limit import take, until
from benchmarks.timing import machine
from leadline.lab.phase.measure import phase
from leadline.lab.phase.page import EDGE_QUANTITY, THEORY_POWER, draw
from leadline.lab.phase.plan import KINDS, PhasePlan, geometric_grid
from leadline.lab.phase.record import Phase
from leadline.lab.sweeps import CellStore

CELLS = RESULTS / "phase_cells.jsonl"
PLANS = {
    "gain": PhasePlan(),
    "rate": PhasePlan(depths=(4, 6, 9, 13, 20, 30, 45, 67, 100, 150), seeds=2),
    "residual": PhasePlan(depths=(4, 7, 12, 20, 35, 60, 100), values=geometric_grid(0.05, 1.6, 7)),
}


def run(kinds: list[str], seconds: float) -> None:
    watch = until(seconds, "columns")
    for kind in kinds:
        found = phase(kind, PLANS[kind], store=CellStore(CELLS), progress=watch)
        results = load("phase")
        results["machine"] = machine()
        results["cases"][kind] = json.loads(found.to_json())
        save("phase", results)


def diagrams(results: Results) -> dict[str, Phase]:
    return {kind: Phase.from_json(json.dumps(record)) for kind, record in results["cases"].items()}


def render(results: Results) -> str:
    """Return a table of how well each rule separates the networks."""
    head = [
        "diagram",
        "networks",
        "rule as stated",
        "balanced accuracy",
        "fitted multiple",
        "on the other columns",
    ]
    rows = []
    for kind, found in diagrams(results).items():
        split = found.separation
        rule = "none stated" if kind == "rate" else f"load < {split.stated:g}"
        at_stated = "" if kind == "rate" or split.at_stated is None else f"{split.at_stated:.0%}"
        rows.append(
            [
                kind,
                str(split.networks),
                rule,
                at_stated,
                "" if split.fitted is None else f"{split.fitted:.3g}",
                "" if split.at_fitted is None else f"{split.at_fitted:.0%}",
            ]
        )
    edges = [
        f"The highest {EDGE_QUANTITY[kind]} that trains falls like depth^{found.power:.2f}; "
        f"theory says {THEORY_POWER[kind]:g}."
        for kind, found in diagrams(results).items()
        if found.power is not None
    ]
    return "\n\n".join([table(head, rows), *edges])


def fill_docs() -> None:
    results = load("phase")
    fill_file(ROOT / "docs" / "lab-notes" / "phase.md", "phase", render(results))
    for kind, found in diagrams(results).items():
        (ROOT / "docs" / "images" / f"phase-{kind}.svg").write_text(draw(found) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("kinds", nargs="*", choices=[*KINDS, []])
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--no-docs", action="store_true", help="measure only")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    if not asked.table:
        run(asked.kinds or list(KINDS), asked.seconds)
    if not asked.no_docs:
        fill_docs()


if __name__ == "__main__":
    take(main)
