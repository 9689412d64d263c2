"""`leadline report`: show a saved report."""

from __future__ import annotations

from pathlib import Path
from typing import TextIO

import click

from leadline.cli.options import FINE, color_option, detail_options, examples, format_option, output_option
from leadline.cli.output import emit, look_for
from leadline.report import Report
from leadline.report.formats import FORMATS


@click.command(
    epilog=examples(
        "leadline check train.py:make_case --format json > saved.json", "leadline report saved.json -v"
    )
)
@click.argument("saved", type=click.File("r", encoding="utf-8", errors="replace"))
@format_option
@output_option
@detail_options
@color_option
def report(saved: TextIO, form: str, output: Path | None, quiet: bool, verbose: bool, no_color: bool) -> int:
    """Show a report that was saved as JSON ("-" reads stdin). Needs no torch."""
    look = look_for(quiet=quiet, verbose=verbose, no_color=no_color or output is not None)
    emit(FORMATS[form](Report.from_json(saved.read()), look), output)
    return FINE
