"""Run five small applications from check to repair: the verdict, the proved repair, the score before and after.

    python -m benchmarks.applications          run applications without a result, write docs/tutorial/applications.md
    python -m benchmarks.applications NAME     run only this one
    python -m benchmarks.applications --page   only write the page

The results are stored in benchmarks/results/applications.json as soon as each application is finished.
"""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

from benchmarks.example_pages import Folder, anchor, linked_check, linked_fixes, run
from benchmarks.result_files import Results, table
from examples.applications import NAMES
from examples.applications.application import run_application

FOLDER = Folder(name="applications", scripts=NAMES)


def measure(name: str, *, proved: bool = True) -> dict[str, Any]:
    """Return the result as JSON; a non-finite loss is null."""
    application = FOLDER.script(name).APPLICATION
    result = {**asdict(run_application(application, quick=not proved)), "proved": proved}
    losses = [loss if math.isfinite(loss) else None for loss in result["loss"]]
    return {**result, "loss": losses, "unit": application.unit, "steps": application.steps}


def render(results: Results) -> str:
    """Return one row per application, then a section for each, from the docstring of its script."""
    cases = {name: results["cases"][name] for name in NAMES if name in results["cases"]}
    header = ["problem", "verdict", "repair", "score before", "after"]
    rows = [_row(name, case) for name, case in cases.items()]
    return "\n\n".join([table(header, rows), *(_section(name, case) for name, case in cases.items())])


def _row(name: str, case: dict[str, Any]) -> list[str]:
    fixes = " + ".join(linked_fixes(each.partition(":")[0]) for each in case["repair"]) or "none found"
    kind = FOLDER.paragraphs(name)[0].partition(":")[0]
    return [
        f"[{kind}: {name.replace('_', ' ')}](#{anchor(_title(name))})",
        case["verdict"],
        fixes,
        *map(_short, case["score"]),
    ]


def _section(name: str, case: dict[str, Any]) -> str:
    codes = [f"{linked_check(each.split()[0])} {each.split()[1]}" for each in case["found"]]
    outcome = (
        f"**Found:** {', '.join(codes)}. **Repair** ({_proof(case)}): {'; '.join(case['repair']) or 'none found'}. "
        f"**Score** ({case['unit']}) after {case['steps']} steps: {_short(case['score'][0])} before, "
        f"{_short(case['score'][1])} after."
    )
    heading = f"## {_title(name)}"
    return "\n\n".join([heading, *FOLDER.prose(name), outcome, FOLDER.command(name)])


def _title(name: str) -> str:
    return name.replace("_", " ").capitalize()


def _proof(case: dict[str, Any]) -> str:
    proved = case.get("proved", True)  # absent in the first results, which were all proved
    return "found and proved by `leadline.fix`" if proved else "applied as the fix proposes it"


def _short(value: float) -> str:
    return f"{value:.3g}"


if __name__ == "__main__":
    run(FOLDER, measure, render)
