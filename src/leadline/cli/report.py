"""`leadline report`: shows a record saved as JSON."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import BinaryIO

import click

from leadline.cli.exit_codes import FINE
from leadline.cli.options import (
    color_option,
    detail_options,
    examples,
    format_option,
    html_option,
    output_option,
)
from leadline.cli.output import emit, look_for
from leadline.records.codec import read_stream
from leadline.report.saved import Kind, formats_of, report_schema

RECORD_PACKAGES = ("leadline.report.saved", "leadline.lab.record_formats")
"""Modules that declare the kinds of records; by name, because only the lab imports the lab."""


def saved_kinds() -> dict[str, Kind]:
    return {schema: kind for name in RECORD_PACKAGES for schema, kind in import_module(name).KINDS.items()}


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
        "leadline report forecast.json --html forecast.html",
        "leadline report race.json --html race.html",
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
@click.argument("saved", type=click.File("rb"))
@format_option
@output_option
@html_option
@detail_options
@color_option
def report(
    saved: BinaryIO,
    form: str,
    output: Path | None,
    page: Path | None,
    quiet: bool,
    verbose: bool,
    no_color: bool,
) -> int:
    """Show a record saved as JSON ("-" reads stdin).

    SAVED holds a report, a repair, a forecast, experiments of the lab, a race or a phase diagram. Torch is not needed.
    """
    look = look_for(quiet=quiet, verbose=verbose, no_color=no_color or output is not None)
    formats = formats_of(_text(saved), look, saved_kinds())
    if form not in formats:
        raise click.UsageError(f"this record has no format {form!r}: choose one of {', '.join(formats)}")
    if page is not None:
        emit(formats["html"](), page)
    emit(formats[form](), output)
    return FINE


def _text(saved: BinaryIO) -> str:
    try:
        return read_stream(saved, errors="replace")
    except (OSError, ValueError) as error:
        raise click.FileError(saved.name, getattr(error, "strerror", None) or str(error)) from None
