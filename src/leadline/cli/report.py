"""`leadline report`: show a saved report or repair."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TextIO

import click

from leadline.cli.options import (
    FINE,
    color_option,
    detail_options,
    examples,
    format_option,
    html_option,
    output_option,
)
from leadline.cli.output import emit, look_for
from leadline.report.formats import FORMATS
from leadline.report.formats.record import read_reports
from leadline.report.look import Look
from leadline.report.mending_formats import REPAIR_FORMATS, is_repair
from leadline.report.repair import RepairReport
from leadline.report.schema import report_schema


def _print_schema(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted:
        emit(json.dumps(report_schema(), indent=2) + "\n")
        context.exit(FINE)


@click.command(
    epilog=examples(
        "leadline check train.py:make_case --format json > saved.json",
        "leadline report saved.json -v",
        "leadline report saved.json --format md >> $GITHUB_STEP_SUMMARY",
        "leadline report saved.json --html report.html",
        "leadline report repair.json --format md",
        "leadline report --schema > report.schema.json",
    )
)
@click.option(
    "--schema",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_schema,
    help="Print the JSON Schema of a saved report and exit.",
)
@click.argument("saved", type=click.File("r", encoding="utf-8", errors="replace"))
@format_option
@output_option
@html_option
@detail_options
@color_option
def report(
    saved: TextIO,
    form: str,
    output: Path | None,
    page: Path | None,
    quiet: bool,
    verbose: bool,
    no_color: bool,
) -> int:
    """Show a report or a repair that was saved as JSON ("-" reads stdin). Needs no torch."""
    look = look_for(quiet=quiet, verbose=verbose, no_color=no_color or output is not None)
    written = _formats(saved.read(), look)
    if form not in written:
        raise click.UsageError(f"a repair has no format {form!r}: choose one of {', '.join(written)}")
    if page is not None:
        emit(written["html"](), page)
    emit(written[form](), output)
    return FINE


def _formats(text: str, look: Look) -> dict[str, Callable[[], str]]:
    """By name, how what was saved can be written."""
    if is_repair(text):
        repair = RepairReport.from_json(text)
        return {name: partial(write, repair, look) for name, write in REPAIR_FORMATS.items()}
    reports = read_reports(text)
    return {name: partial(write, reports, look) for name, write in FORMATS.items()}
