"""The tables of docs/lab-notes/first-hour.md."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from benchmarks.first_hour.scores import JUDGES, Row, Score, rows, same_verdicts, score
from benchmarks.first_hour.verdict import ONE_BATCH, SEVERAL_BATCHES
from benchmarks.result_files import Results, load, table


def render(results: Results) -> str:
    """Return the figures and the table of all variants."""
    truth = load("first_hour_truth")
    found = rows(results, truth)
    return "\n\n".join(
        [
            "### How often it is right",
            figures(found),
            before(rows({"cases": results.get("before", {})}, truth)),
            "### Results of the training programs",
            programs(results.get("programs", {})),
            "### Every variant",
            all_variants(found),
        ]
    )


def figures(found: list[Row]) -> str:
    header = ["judge", "half", "right", "broken ones found", "false alarms"]
    lines = []
    for half in ("held out", "calibration"):
        chosen = [row for row in found if row.half == half]
        for judge, says_it_trains in JUDGES.items():
            lines.append([judge, half, *_figures(score(chosen, says_it_trains))])
    same, cases = same_verdicts(found)
    disagreeing = sum(not row.counted for row in found)
    return "\n\n".join(
        [
            table(header, lines),
            f"Both ways of passing the loss get the same verdict for {same} of {cases} variants. The seeds disagree "
            f"for {disagreeing} variants, which are not counted above.",
        ]
    )


def before(found: list[Row]) -> str:
    """Return the figures of the first measurement, before anything was fixed."""
    inside, outside = (score(found, JUDGES[f"Leadline, one batch, loss {way}"]) for way in ONE_BATCH)
    same, cases = same_verdicts(found)
    return (
        f"The first measurement, before any check was changed: {inside.right} of {inside.cases} right with the loss "
        f"inside, {outside.right} with the loss outside, and the same verdict for {same} of {cases}."
    )


def _figures(found: Score) -> list[str]:
    return [
        f"{found.right} of {found.cases} ({_percent(found.right, found.cases)})",
        f"{found.found} of {found.broken}",
        f"{found.false_alarms} of {found.healthy}",
    ]


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.0f} %" if whole else "none"


def programs(found: dict[str, dict[str, Any]]) -> str:
    header = ["program", "must be", "loss", "verdict and codes", "right"]
    return table(header, [_program(name, each) for name, each in found.items()])


def _program(name: str, found: dict[str, Any]) -> list[str]:
    losses = " to ".join("NaN" if loss is None else f"{loss:.3g}" for loss in found.get("losses", []))
    said = found.get("error") or " ".join([found["verdict"], *found["codes"]])
    return [name, found["expected"], losses, said, "yes" if found["right"] else "no"]


def all_variants(found: list[Row]) -> str:
    header = ["variant", "half", "gain recovered", "outcome", "eight batches", "right", "one batch", "right"]
    return table(header, [_row(row) for row in found])


def _row(row: Row) -> list[str]:
    return [
        row.name,
        row.half,
        " ".join(_share(share) for share in row.shares),
        row.outcome if row.counted else "seeds disagree",
        *(cell for pair in (SEVERAL_BATCHES, ONE_BATCH) for cell in (_said(row, pair), _mark(row, pair))),
    ]


def _share(share: float) -> str:
    return f"{max(share, -9.0):.2f}" if math.isfinite(share) else "NaN"


def _said(row: Row, ways: Sequence[str]) -> str:
    """What was said, twice if the two ways of passing the loss differ."""
    answers = [row.answer[way] for way in ways if way in row.answer]
    return " / ".join(dict.fromkeys(" ".join([each["verdict"], *each["codes"]]) for each in answers))


def _mark(row: Row, ways: Sequence[str]) -> str:
    if not row.counted or ways[0] not in row.answer:
        return ""
    right = [row.right(way) for way in ways]
    return "yes" if all(right) else "one way" if any(right) else "no"
