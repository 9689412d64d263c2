"""The baseline of a check: read before the work, written or compared behind it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from leadline.baseline import Baseline, compared, read_baseline, updated, write
from leadline.cli.output import say
from leadline.report import Report
from leadline.report.text import clean, plural


def read_known(baseline: Path | None, write_to: Path | None) -> Baseline:
    """What is known so far. A file that is to be written need not be there yet."""
    path = write_to or baseline
    return Baseline() if path is None or (path == write_to and not path.exists()) else read_baseline(path)


def write_known(known: Baseline, reports: Sequence[Report], path: Path) -> Baseline:
    """What is known from now on, written to `path`."""
    known = updated(known, reports, path.parent)
    try:
        write(known, path)
    except OSError as error:
        raise click.FileError(str(path), error.strerror or str(error)) from None
    amount = sum(len(report.findings) for report in reports)
    say(f"{path}: {plural(amount, 'finding')} of {plural(len(reports), 'target')} written")
    return known


def mark_known(reports: Sequence[Report], known: Baseline, path: Path) -> list[Report]:
    """The reports with what is known marked. Entries that nothing matches any more are told, and fail nothing."""
    pairs = [compared(report, known, path.parent) for report in reports]
    stale = [entry for _, entries in pairs for entry in entries]
    for entry in stale:
        say(clean(f"{path}: no longer found: {entry.code} {entry.name} at {entry.where} ({entry.target})"))
    if stale:
        say(f"Write it again with --write-baseline {path}")
    return [report for report, _ in pairs]
