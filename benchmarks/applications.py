"""Five small applications in full: the verdict, the repair that was proved, the task's score before and after.

python -m benchmarks.applications          runs those that have no result, and writes docs/applications.md
python -m benchmarks.applications NAME     only that one
python -m benchmarks.applications --page   only writes the page
"""

from __future__ import annotations

import inspect
import math
import sys
from dataclasses import asdict
from functools import partial
from importlib import import_module
from types import ModuleType
from typing import Any

import torch

from benchmarks.store import ROOT, Results, fill_file, load, run_missing, table
from examples.applications import NAMES
from examples.applications.solving import solve

NAME = "applications"
PAGE = ROOT / "docs" / "applications.md"


def script_of(name: str) -> ModuleType:
    return import_module(f"examples.applications.{name}")


def measure(name: str, *, proved: bool = True) -> dict[str, Any]:
    """The solution as JSON; a loss that is no number is null."""
    application = script_of(name).APPLICATION
    found = {**asdict(solve(application, quick=not proved)), "proved": proved}
    losses = [loss if math.isfinite(loss) else None for loss in found["loss"]]
    return {**found, "loss": losses, "unit": application.unit, "steps": application.steps}


def render(results: Results) -> str:
    """One row an application, then what each is, from the docstring of its script."""
    cases = {name: results["cases"][name] for name in NAMES if name in results["cases"]}
    header = ["problem", "verdict", "repair", "score before", "after"]
    rows = [_row(name, case) for name, case in cases.items()]
    return "\n\n".join([table(header, rows), *(_section(name, case) for name, case in cases.items())])


def _row(name: str, case: dict[str, Any]) -> list[str]:
    names = [part for each in case["repair"] for part in each.partition(":")[0].split(" + ")]
    fixes = " + ".join(f"[{part}](fixes/{part}.md)" for part in names) or "none found"
    kind = _parts(name)[0].partition(":")[0]
    return [
        f"[{kind}: {name.replace('_', ' ')}](#{name})",
        case["verdict"],
        fixes,
        *map(_short, case["score"]),
    ]


def _section(name: str, case: dict[str, Any]) -> str:
    paragraphs = [each for each in _parts(name) if not each.startswith("    ")]
    codes = [f"[{each.split()[0]}](rules/{each.split()[0]}.md) {each.split()[1]}" for each in case["found"]]
    told = (
        f"**Found:** {', '.join(codes)}. **Repair** ({_proof(case)}): {'; '.join(case['repair']) or 'none found'}. "
        f"**Score** ({case['unit']}) after {case['steps']} steps: {_short(case['score'][0])} before, "
        f"{_short(case['score'][1])} after."
    )
    command = f"`python -m examples.applications.{name}`"
    return "\n\n".join([f"## {name.replace('_', ' ').capitalize()} {{#{name}}}", *paragraphs, told, command])


def _parts(name: str) -> list[str]:
    return inspect.cleandoc(script_of(name).__doc__ or "").split("\n\n")


def _proof(case: dict[str, Any]) -> str:
    proved = case.get("proved", True)  # absent in the first results, which were all proved
    return "found and proved by `leadline.fix`" if proved else "made as the fix proposes it"


def _short(value: float) -> str:
    return f"{value:.3g}"


def main() -> None:
    torch.set_num_threads(1)
    if "--page" not in sys.argv:
        wanted = [each for each in sys.argv[1:] if not each.startswith("--")] or NAMES
        proved = "--unproved" not in sys.argv
        run_missing(NAME, {name: partial(measure, name, proved=proved) for name in wanted}, print)
    fill_file(PAGE, NAME, render(load(NAME)))


if __name__ == "__main__":
    main()
