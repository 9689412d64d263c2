"""Run ten reported failures from check to repair: the diagnosis, the repair, and the loss before and after.

    python -m benchmarks.incidents          run incidents without a result, write docs/tutorial/incidents.md
    python -m benchmarks.incidents NAME     run only this one
    python -m benchmarks.incidents --page   only write the page

The results are stored in benchmarks/results/incidents.json as soon as each incident is finished.
"""

from __future__ import annotations

import math
from dataclasses import asdict, replace
from typing import Any

from benchmarks.example_pages import Folder, anchor, linked_check, linked_fixes, run
from benchmarks.result_files import Results, table
from examples.incidents import ORDER
from examples.incidents.incident import run_incident
from leadline.report.verdict import TITLES

FOLDER = Folder(name="incidents", scripts=ORDER)


def measure(name: str, *, proved: bool = True) -> dict[str, Any]:
    """Return the result as JSON; a non-finite loss is null."""
    incident = FOLDER.script(name).INCIDENT
    result = asdict(run_incident(replace(incident, proved=incident.proved and proved)))
    losses = {key: _finite(result[key]) for key in ("before", "after", "relative")}
    return {**result, **losses, "cause": incident.cause, "guess": incident.guess, "steps": incident.steps}


def _finite(loss: float | None) -> float | None:
    return loss if loss is not None and math.isfinite(loss) else None


def render(results: Results) -> str:
    """Return one table, then one section per incident, from the docstring of its script."""
    cases = results["cases"]
    rows = [_row(name, cases[name]) for name in ORDER if name in cases]
    header = ["what happens", "cause", "repair", "loss before", "after", "constant guess"]
    sections = [_section(name, cases[name]) for name in ORDER if name in cases]
    return "\n\n".join([table(header, rows), *sections])


def title(name: str) -> str:
    return FOLDER.paragraphs(name)[0].removesuffix(".")


def _row(name: str, case: dict[str, Any]) -> list[str]:
    fixes = " + ".join(linked_fixes(each.partition(":")[0]) for each in case["repair"]) or "none found"
    cause = f"{linked_check(case['cause'])}, {_grade(case['severity'])}"
    return [
        f"[{title(name)}](#{anchor(title(name))})",
        cause,
        fixes,
        _number(case["before"]),
        _number(case["after"]),
        _number(case["guess"]),
    ]


def _section(name: str, case: dict[str, Any]) -> str:
    proof = (
        "applied as the fix proposes it"
        if case["verdict_after"] is None
        else f"found and proved by `leadline.fix`; verdict after it: {TITLES[case['verdict_after']].lower()}"
    )
    variant = "" if case["relative"] is None else f" The healthy variant ends at {_number(case['relative'])}."
    outcome = (
        f"**Leadline says** {TITLES[case['verdict_before']].lower()}, and {case['cause']}: {case['finding']}.\n\n"
        f"**Repair.** {'; '.join(case['repair']) or 'None found'} ({proof}). Over the last quarter of "
        f"{case['steps']} steps the mean loss is {_number(case['before'])} before and {_number(case['after'])} after; "
        f"{_number(case['guess'])} is the loss of the best constant guess.{variant}"
    )
    heading = f"## {title(name)}"
    return "\n\n".join([heading, *FOLDER.prose(name)[1:], outcome, FOLDER.command(name)])


def _grade(severity: str) -> str:
    return "a note" if severity == "info" else f"{'an' if severity == 'error' else 'a'} {severity}"


def _number(value: float | None) -> str:
    return "NaN" if value is None else f"{value:.2f}"


if __name__ == "__main__":
    run(FOLDER, measure, render)
