"""Experiments as tables for the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from io import StringIO
from typing import Literal

from rich import box
from rich.console import Console, Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from leadline.records import Check, Experiment, Lab, Ruling
from leadline.report.formula import in_signs
from leadline.report.lab.words import ANSWERS, DISAGREES, PARTIES, TITLES, measured, predicted, summary
from leadline.report.layout import QUIET, TONES
from leadline.report.look import Look

MOST_WIDTH = 118
STYLES: dict[Ruling, str] = {
    "holds": TONES["trains"],
    "holds under conditions": TONES["warning"],
    "false as stated": TONES["error"],
    "undecided": "bold",
    "unexplained": TONES["error"],
}


def render_lab(lab: Lab, look: Look) -> str:
    """Each experiment: statement, predictions beside measurements, verdict, what is true; a summary behind several."""
    page = StringIO()
    color: Literal["standard"] | None = "standard" if look.color else None
    console = Console(
        file=page,
        width=min(look.width, MOST_WIDTH),
        color_system=color,
        force_terminal=look.color,
        highlight=False,
    )
    for each in lab.experiments:
        console.print(_headline(each) if look.detail == "verdict" else _shown(each, look))
    if len(lab.experiments) > 1:
        console.print(f"{len(lab.experiments)} claims: {summary(lab.experiments)}")
    return "".join(f"{line.rstrip()}\n" for line in page.getvalue().splitlines())


def _headline(each: Experiment) -> Text:
    told = Text.assemble(
        (f"{each.code}  ", "bold"), (TITLES[each.verdict], STYLES[each.verdict]), f": {in_signs(each.claim)}"
    )
    if not each.agrees:
        told.append(f"  {DISAGREES}: {each.published}", TONES["error"])
    return told


def _shown(each: Experiment, look: Look) -> Group:
    everything = look.detail == "everything"
    parts = [_headline(each), Text()]
    if everything:
        parts += [Text(f"The article  {in_signs(_joined(each.article))}"), Text()]
        parts += [Text(f"The test  {in_signs(_joined(each.test))}"), Text()]
    told = [Text.assemble(("What is true  ", QUIET), in_signs(_joined(each.truth))), Text()]
    ran = Text(f"{each.seeds} seeds, {each.seconds:.1f} s of processor time", QUIET)
    return Group(*parts, _table(each.checks, origins=everything), *told, ran, Text())


def _table(checks: Sequence[Check], *, origins: bool) -> Padding:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    for name in ("measured", "by", "predicted", "found (95 %)", "met", *(("origin",) if origins else ())):
        table.add_column(name, overflow="fold", header_style=QUIET, ratio=None)
    for check in checks:
        row = [
            in_signs(check.what),
            PARTIES[check.by],
            predicted(check),
            measured(check),
            ANSWERS[check.agrees],
        ]
        table.add_row(*map(Text, row + ([in_signs(check.origin)] if origins else [])))
    return Padding(table, (0, 0, 1, 0))


def _joined(text: str) -> str:
    return " ".join(text.split())
