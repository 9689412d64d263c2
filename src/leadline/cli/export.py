"""`leadline export`: writes the numbers of a run for other tools."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from leadline.cli.exit_codes import FINE
from leadline.cli.options import examples, output_option
from leadline.cli.output import say
from leadline.monitor.runfile.export import (
    FORMATS,
    TEXT_FORMATS,
    RunTable,
    layer_table,
    scalar_table,
    to_parquet,
)
from leadline.monitor.runfile.read import Run
from leadline.text import clean


@click.command(
    epilog=examples(
        "leadline export run.leadline --to csv > run.csv",
        "leadline export run.leadline -o run.parquet",
        "leadline export run.leadline --layers -o layers.parquet",
    )
)
@click.argument("run", type=click.Path(path_type=Path))
@click.option(
    "--to", "form", type=click.Choice(FORMATS), help="Format of the table; by default the file ending of -o."
)
@output_option
@click.option(
    "--layers", is_flag=True, help="Write one row per step, metric and layer instead of one per step."
)
def export(run: Path, form: str | None, output: Path | None, layers: bool) -> int:
    """Write the numbers of a run as a table: one row per step, one column per metric.

    With --layers, write the numbers of the layers: one row per number, with the columns step, metric, axis, index,
    layer, value. What was not measured is empty, or left out in JSON lines; NaN means NaN. Parquet needs pyarrow.
    """
    form = form or (output.suffix.lstrip(".") if output else "")
    if form not in FORMATS:
        raise click.UsageError(
            f"Choose a format with --to {'|'.join(FORMATS)}, or give -o a name with that ending"
        )
    if form == "parquet" and output is None:
        raise click.UsageError("Parquet is not text: give a file name with -o")
    with Run(run) as opened:
        if layers and not opened.vector_axes:
            say(f"{clean(str(run))} has no numbers of layers: the table is empty")
        _write(layer_table(opened) if layers else scalar_table(opened), form, output)
    return FINE


def _write(table: RunTable, form: str, output: Path | None) -> None:
    if output is None:
        _to_stdout(table, form)
        return
    with _replacement(output) as part:
        if form == "parquet":
            to_parquet(table, part)
        else:
            with part.open("w", encoding="utf-8", newline="") as file:
                TEXT_FORMATS[form](table, file)


@contextmanager
def _replacement(path: Path) -> Iterator[Path]:
    """A temporary file next to `path` that replaces it once everything is written."""
    part = path.with_name(f"{path.name}.part")
    try:
        yield part
        os.replace(part, path)
    except OSError as error:
        raise click.FileError(str(path), error.strerror or str(error)) from None
    finally:
        part.unlink(missing_ok=True)


def _to_stdout(table: RunTable, form: str) -> None:
    """Write row by row to stdout; a closed pipe (`| head`) is not an error."""
    try:
        TEXT_FORMATS[form](table, sys.stdout)
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
