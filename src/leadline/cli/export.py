"""`leadline export`: the numbers of a run, for other tools."""

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
    "--to", "form", type=click.Choice(FORMATS), help="The format; without it, the ending of -o says."
)
@output_option
@click.option(
    "--layers", is_flag=True, help="One row for each step, metric and layer, instead of one a step."
)
def export(run: Path, form: str | None, output: Path | None, layers: bool) -> int:
    """Write the numbers of a run as a table: one row a step, one column a number.

    With --layers, the numbers of the layers: one row a number, with the columns step, metric, axis, index, layer,
    value. What was not measured is empty, in JSON left out; NaN is what was NaN. Parquet needs pyarrow.
    """
    form = form or (output.suffix.lstrip(".") if output else "")
    if form not in FORMATS:
        raise click.UsageError(f"Say the format: --to {'|'.join(FORMATS)}, or -o with such an ending")
    if form == "parquet" and output is None:
        raise click.UsageError("Parquet is not text: name a file with -o")
    from leadline.monitor.runfile.read import Run

    with Run(run) as found:
        if layers and not found.vector_axes:
            say(f"{clean(str(run))} has no numbers of layers: the table is empty")
        _write(layer_table(found) if layers else scalar_table(found), form, output)
    return FINE


def _write(table: RunTable, form: str, output: Path | None) -> None:
    if output is None:
        _to_stdout(table, form)
        return
    with _replacing(output) as fresh:
        if form == "parquet":
            to_parquet(table, fresh)
        else:
            with fresh.open("w", encoding="utf-8", newline="") as file:
                TEXT_FORMATS[form](table, file)


@contextmanager
def _replacing(path: Path) -> Iterator[Path]:
    """A file beside `path` that takes its place when all is written: half a table is worse than none."""
    fresh = path.with_name(f"{path.name}.part")
    try:
        yield fresh
        os.replace(fresh, path)
    except OSError as error:
        raise click.FileError(str(path), error.strerror or str(error)) from None
    finally:
        fresh.unlink(missing_ok=True)


def _to_stdout(table: RunTable, form: str) -> None:
    """Row by row. A reader that has gone away (`| head`) is no error."""
    try:
        TEXT_FORMATS[form](table, sys.stdout)
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
