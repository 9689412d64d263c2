"""`leadline compare`: compares two saved reports or two runs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import click

from leadline.cli.check import check_past_run
from leadline.cli.exit_codes import FINE, FOUND, UNDECIDED
from leadline.cli.options import (
    color_option,
    detail_options,
    examples,
    fail_option,
    html_option,
    output_option,
)
from leadline.cli.output import emit, look_for
from leadline.errors import InputError
from leadline.monitor.runfile import SUFFIX, Run
from leadline.records import FailOn
from leadline.records.codec import read_text
from leadline.records.report import Report, ReportComparison
from leadline.report.compare import compare as compare_reports
from leadline.report.formats import comparison_formats
from leadline.report.pages.comparison import Losses
from leadline.report.saved import read_reports
from leadline.report.verdict import fails

SAVED = click.Path(dir_okay=False, exists=True, path_type=Path)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedReport:
    """The report of one of the two files."""

    report: Report
    losses: Losses | None = None
    """Steps and losses of a run; None for a saved report."""


@click.command(
    epilog=examples(
        "leadline check train.py:make_case --format json -o before.json",
        "leadline compare before.json after.json",
        "leadline compare before.json after.json --html compared.html",
        "leadline compare monday.leadline tuesday.leadline --fail-on error",
    )
)
@click.argument("first", metavar="A", type=SAVED)
@click.argument("second", metavar="B", type=SAVED)
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json", "html"]),
    default="text",
    show_default=True,
    help="Output format; it does not change the exit code.",
)
@output_option
@html_option
@fail_option
@detail_options
@color_option
def compare(
    first: Path,
    second: Path,
    form: str,
    output: Path | None,
    page: Path | None,
    fail_on: FailOn,
    quiet: bool,
    verbose: bool,
    no_color: bool,
) -> int:
    """Compare two saved reports or two runs: new and resolved findings, and both profiles.

    A and B are JSON files written by `leadline check --format json`, or run files (.leadline), which are judged as by
    `leadline check`. Torch is not needed.

    Exit codes: 0 no new or worse finding of B at or above --fail-on; 1 at least one; 2 wrong usage or an
    error; 3 B could not be judged.
    """
    look = look_for(quiet=quiet, verbose=verbose, no_color=no_color or output is not None, fail_on=fail_on)
    loaded = _load(first), _load(second)
    reports = loaded[0].report, loaded[1].report
    comparison = compare_reports(*reports, names=(str(first), str(second)))
    formats = comparison_formats(comparison, reports, _losses(*loaded))
    if page is not None:
        emit(formats["html"](look), page)
    emit(formats[form](look), output)
    return exit_code(comparison, fail_on)


def exit_code(comparison: ReportComparison, fail_on: FailOn) -> int:
    """The exit code by what B has more than A; it does not depend on the format."""
    worse = [change.second for change in comparison.kept if change.worse]
    if any(fails(finding, fail_on) for finding in (*comparison.gained, *worse)):
        return FOUND
    return UNDECIDED if comparison.second.verdict == "undecided" else FINE


def _losses(first: LoadedReport, second: LoadedReport) -> tuple[Losses, Losses] | None:
    return None if first.losses is None or second.losses is None else (first.losses, second.losses)


def _load(path: Path) -> LoadedReport:
    """The one report in a file, or the last of a run."""
    if str(path).endswith(SUFFIX):
        return _of_run(path)
    reports = read_reports(read_text(path, "a saved report", errors="replace"))
    if len(reports) != 1:
        raise InputError(
            expected="a file with one report",
            got=f"{path}, which has {len(reports)}",
            fix="check one target at a time: leadline check TARGET --format json -o report.json",
        )
    return LoadedReport(report=reports[0])


def _of_run(path: Path) -> LoadedReport:
    with Run(path) as run:
        losses = run.scalars("loss") if "loss" in run.scalar_names else None
    return LoadedReport(report=check_past_run(str(path), {}), losses=losses)
