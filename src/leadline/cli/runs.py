"""`leadline runs`: lists run files with their steps, loss and alerts."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import click
from msgspec.structs import asdict

from leadline.cli.exit_codes import FAILED, FINE
from leadline.cli.options import examples
from leadline.cli.output import emit, say
from leadline.errors import LeadlineError
from leadline.monitor.runfile.summary import RunFileSummary, find_runs, summarize
from leadline.records import spell
from leadline.text import clean, count, number

HEADER = ("run", "model", "steps", "loss", "alerts", "last step", "state")
# Columns aligned to the right.
NUMBERS = ("steps", "loss")
SPANS = ((86400.0, "d"), (3600.0, "h"), (60.0, "min"), (1.0, "s"))


@click.command(epilog=examples("leadline runs", "leadline runs experiments/ --format json"))
@click.argument("places", metavar="[DIR|FILE]...", nargs=-1, type=click.Path(path_type=Path))
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True)
def runs(places: tuple[Path, ...], form: str) -> int:
    """List run files: model, steps, last loss, alerts, and whether each is still being written.

    Without an argument, the runs below the working directory are listed. A run can be read while it is being written.
    Exit codes: 0 done, 2 a file could not be read (the others are listed).
    """
    paths = [path for place in places or (Path(),) for path in find_runs(place)]
    summaries, unreadable = _summaries(paths)
    if form == "json":
        emit(json.dumps(spell([asdict(each) for each in summaries]), indent=2) + "\n")
    elif summaries:
        emit(_table([HEADER, *(_row(each) for each in summaries)]))
    elif not unreadable:
        say('no run files here; write one with leadline.watch(model, optimizer, store="run.leadline")')
    return FAILED if unreadable else FINE


def _summaries(paths: Iterable[Path]) -> tuple[list[RunFileSummary], int]:
    summaries: list[RunFileSummary] = []
    unreadable = 0
    for path in paths:
        try:
            summaries.append(summarize(path))
        except LeadlineError as error:
            unreadable += 1
            say("\n       ".join(map(clean, f"error: {error}".splitlines())))
    return summaries, unreadable


def _row(run: RunFileSummary) -> tuple[str, ...]:
    return (
        clean(run.path),
        clean(run.model) or "-",
        _steps(run),
        "-" if run.loss is None else number(run.loss),
        _alerts(run),
        "-" if run.updated is None else f"{_span(time.time() - run.updated)} ago",
        run.state,
    )


def _steps(run: RunFileSummary) -> str:
    """The number of recorded steps, and the number of all steps if it is larger."""
    total = (run.last_step or 0) - (run.first_step or 0) + 1
    return f"{count(run.steps)} of {count(total)}" if 0 < run.steps < total else count(run.steps)


def _alerts(run: RunFileSummary) -> str:
    """Codes of the active alerts, and the number of cleared ones."""
    codes = [clean(code) for code in sorted(set(run.standing))]
    cleared = run.alerts - len(run.standing)
    past = f"{cleared} over" if cleared > 0 else ""
    return ", ".join(filter(None, [*codes, past])) or "none"


def _span(seconds: float) -> str:
    unit, name = next((each for each in SPANS if seconds >= each[0]), SPANS[-1])
    return f"{max(seconds, 0.0) / unit:.0f} {name}"


def _table(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADER))]
    lines = []
    for row in rows:
        cells = [
            f"{cell:>{width}}" if name in NUMBERS else f"{cell:<{width}}"
            for name, cell, width in zip(HEADER, row, widths, strict=True)
        ]
        lines.append("  ".join(cells).rstrip() + "\n")
    return "".join(lines)
