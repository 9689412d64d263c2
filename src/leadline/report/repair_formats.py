"""The formats of a repair: text, JSON, Markdown and HTML."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from leadline.records import Outcome
from leadline.report.formats.md import code, prose, table
from leadline.report.repair import CURVE, REACHES, clean_lines, curve, limits
from leadline.report.verdict import TITLES, sentence
from leadline.text import number

if TYPE_CHECKING:
    from leadline.records.repair import RepairReport

from collections.abc import Callable

from leadline.records.repair import RepairReport
from leadline.report.html import render_repair
from leadline.report.layout import Look
from leadline.report.repair import render

_BACKTICKS = re.compile(r"`+")


def to_markdown(repair: RepairReport) -> str:
    """Both verdicts, what was tried, both trainings and the code."""
    parts = [_headline(repair), _outcomes(repair), _training(repair), _code(repair), _notes(repair)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _headline(repair: RepairReport) -> str:
    before, after = TITLES[repair.verdict_before], TITLES[repair.verdict_after]
    told = prose(sentence(repair.after or repair.before))
    return f"## {before if repair.after is None else f'{before} → {after}'}: {told}"


def _outcomes(repair: RepairReport) -> str:
    rows = [_row(each) for each in repair.outcomes]
    return (
        table(("outcome", "fix", "for", "reach", "what", "measured"), rows) if rows else "Nothing was tried."
    )


def _row(outcome: Outcome) -> tuple[str, ...]:
    state = f"**{outcome.state}**, kept" if outcome.kept else outcome.state
    answers, reach = ", ".join(outcome.answers), REACHES[outcome.reach]
    return state, code(outcome.fix), prose(answers), reach, prose(outcome.title), prose(outcome.why)


def _training(repair: RepairReport) -> str:
    trial = repair.trial
    if trial is None:
        return ""
    low, high, steps = limits(trial)
    pairs = [("untreated", trial.untreated), ("repaired", trial.treated)]
    rows = [
        (name, code(curve(losses, low, high, CURVE, steps)), number(losses[0]), number(losses[-1]))
        for name, losses in pairs
        if losses
    ]
    return table(("model", f"loss over {steps} steps", "first", "last"), rows)


def _code(repair: RepairReport) -> str:
    rows = clean_lines(repair.code)
    fence = "`" * max(3, *(len(run) + 1 for run in _BACKTICKS.findall(repair.code)), 3)
    return "\n".join([f"{fence}python", *rows, fence]) if rows else ""


def _notes(repair: RepairReport) -> str:
    return "\n".join(f"- {prose(note)}" for note in repair.notes)


# The formats of a repair, functions of its record: what `leadline fix` writes and `leadline report` shows again.

REPAIR_FORMATS: dict[str, Callable[[RepairReport, Look], str]] = {
    "text": render,
    "json": lambda repair, look: repair.to_json() + "\n",
    "md": lambda repair, look: to_markdown(repair),
    "html": lambda repair, look: render_repair(repair),
}
