"""Ten reported failures, told in full: what the check says, what the repair is, the loss before and after.

python -m benchmarks.incidents          runs those that have no result, and writes docs/incidents.md
python -m benchmarks.incidents NAME     only that one
python -m benchmarks.incidents --page   only writes the page
"""

from __future__ import annotations

import inspect
import math
import sys
from dataclasses import asdict, replace
from functools import partial
from importlib import import_module
from types import ModuleType
from typing import Any

import torch

from benchmarks.store import ROOT, Results, fill_file, load, run_missing, table
from examples.incidents import ORDER
from examples.incidents.telling import tell
from leadline.report.verdict import TITLES

NAME = "incidents"
PAGE = ROOT / "docs" / "incidents.md"
REPOSITORY_PATH = "examples/incidents"


def script_of(name: str) -> ModuleType:
    return import_module(f"examples.incidents.{name}")


def measure(name: str, *, proved: bool = True) -> dict[str, Any]:
    """The whole story as JSON; a loss that is no number is null."""
    incident = script_of(name).INCIDENT
    story = asdict(tell(replace(incident, proved=incident.proved and proved)))
    losses = {key: _finite(story[key]) for key in ("before", "after", "relative")}
    return {**story, **losses, "cause": incident.cause, "guess": incident.guess, "steps": incident.steps}


def _finite(loss: float | None) -> float | None:
    return loss if loss is not None and math.isfinite(loss) else None


def render(results: Results) -> str:
    """One table, then one section an incident, each from the docstring of its script."""
    cases = results["cases"]
    rows = [_row(name, cases[name]) for name in ORDER if name in cases]
    header = ["what happens", "cause", "repair", "loss before", "after", "a guess"]
    sections = [_section(name, cases[name]) for name in ORDER if name in cases]
    return "\n\n".join([table(header, rows), *sections])


def title(name: str) -> str:
    return _parts(name)[0].removesuffix(".")


def _parts(name: str) -> list[str]:
    """The first sentence of a script's docstring, and its other paragraphs."""
    return inspect.cleandoc(script_of(name).__doc__ or "").split("\n\n")


def _row(name: str, case: dict[str, Any]) -> list[str]:
    fixes = " + ".join(_link_fix(each.partition(":")[0]) for each in case["repair"]) or "none found"
    cause = f"[{case['cause']}](rules/{case['cause']}.md), {_grade(case['severity'])}"
    return [
        f"[{title(name)}](#{name})",
        cause,
        fixes,
        _number(case["before"]),
        _number(case["after"]),
        _number(case["guess"]),
    ]


def _section(name: str, case: dict[str, Any]) -> str:
    paragraphs = [each for each in _parts(name)[1:] if not each.startswith("    ")]
    proof = (
        "made as the fix proposes it"
        if case["verdict_after"] is None
        else f"found and proved by `leadline.fix`; verdict after it: {TITLES[case['verdict_after']].lower()}"
    )
    relative = (
        "" if case["relative"] is None else f" The relative that trains ends at {_number(case['relative'])}."
    )
    told = (
        f"**Leadline says** {TITLES[case['verdict_before']].lower()}, and {case['cause']}: {case['finding']}.\n\n"
        f"**Repair.** {'; '.join(case['repair']) or 'None found'} ({proof}). Over the last quarter of "
        f"{case['steps']} steps the mean loss is {_number(case['before'])} before and {_number(case['after'])} after; "
        f"{_number(case['guess'])} is a guess that knows only how often each answer occurs.{relative}"
    )
    command = f"`python -m {REPOSITORY_PATH.replace('/', '.')}.{name}`"
    return "\n\n".join([f"## {title(name)} {{#{name}}}", *paragraphs, told, command])


def _link_fix(names: str) -> str:
    return " + ".join(f"[{name}](fixes/{name}.md)" for name in names.split(" + "))


def _grade(severity: str) -> str:
    return "a note" if severity == "info" else f"{'an' if severity == 'error' else 'a'} {severity}"


def _number(value: float | None) -> str:
    return "NaN" if value is None else f"{value:.2f}"


def main() -> None:
    torch.set_num_threads(1)
    if "--page" not in sys.argv:
        wanted = [each for each in sys.argv[1:] if not each.startswith("--")] or ORDER
        proved = "--unproved" not in sys.argv
        run_missing(NAME, {name: partial(measure, name, proved=proved) for name in wanted}, print)
    fill_file(PAGE, NAME, render(load(NAME)))


if __name__ == "__main__":
    main()
