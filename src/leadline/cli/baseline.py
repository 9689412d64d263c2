"""Baselines: a file of known findings, so that only new or worse ones fail a check."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import click
import msgspec
from msgspec.structs import replace

from leadline.cli.output import say
from leadline.errors import InputError
from leadline.records import Finding, Severity, decode, severity_rank
from leadline.records.codec import read_text
from leadline.records.report import Report
from leadline.report.place import stable_where
from leadline.targets import locate
from leadline.text import clean, plural

BASELINE_SCHEMA = "leadline.cli.baseline/1"
ANY_NAME = "surrogatepass"  # a module may be called by half a character, which UTF-8 alone cannot write


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """A finding that is known: which rule, of which target, where, and how severe. Its numbers may drift."""

    target: str
    code: str
    name: str
    where: str
    severity: Severity


class Baseline(msgspec.Struct, frozen=True, kw_only=True):
    """The known findings of all targets of a project, in an order that does not change by itself."""

    schema: str = BASELINE_SCHEMA
    findings: tuple[Entry, ...] = ()


def read_baseline(path: Path) -> Baseline:
    if not path.is_file():
        raise InputError(
            expected="a baseline",
            got=f"{str(path)!r}, which is not there",
            fix=f"write one with `leadline check TARGET --write-baseline {path}`",
        )
    return decode(read_text(path, "a baseline", errors=ANY_NAME), Baseline, BASELINE_SCHEMA)


def write(baseline: Baseline, path: Path) -> None:
    """One finding a few lines, sorted: what changed is seen in a code review."""
    text = json.dumps(msgspec.to_builtins(baseline), indent=2, ensure_ascii=False)
    path.write_text(text + "\n", encoding="utf-8", errors=ANY_NAME)


def updated(baseline: Baseline, reports: Iterable[Report], folder: Path) -> Baseline:
    """`baseline` with what is now known of these reports' targets; those that were not checked keep their entries."""
    fresh = {target_key(report.target, folder): report for report in reports}
    kept = [entry for entry in baseline.findings if entry.target not in fresh]
    made = [_entry(finding, target) for target, report in fresh.items() for finding in report.findings]
    return Baseline(findings=tuple(sorted([*kept, *made], key=msgspec.structs.astuple)))


def compared(report: Report, baseline: Baseline, folder: Path) -> tuple[Report, tuple[Entry, ...]]:
    """The report with its known findings marked, and the entries for this target that nothing matches any more.

    A finding is known if an entry has its rule and its place and is at least as severe. An entry serves one finding.
    """
    target = target_key(report.target, folder)
    left = [entry for entry in baseline.findings if entry.target == target]
    marked = tuple(_marked(finding, left) for finding in report.findings)
    current = [finding for finding in (*marked, *report.ignored) if not finding.known]
    stale = tuple(entry for entry in left if not any(_same_place(entry, each) for each in current))
    return replace(report, findings=marked), stale


def target_key(target: str, folder: Path) -> str:
    """A target as the baseline in `folder` names it, from whatever working directory it was checked."""
    where = locate(target)
    if not where.is_file:
        return target
    path = os.path.relpath(Path(where.place).resolve(), folder.resolve())
    return f"{Path(path).as_posix()}:{where.attribute}"


def _entry(finding: Finding, target: str) -> Entry:
    return Entry(
        target=target,
        code=finding.code,
        name=finding.name,
        where=finding.where,
        severity=finding.severity,
    )


def _marked(finding: Finding, left: list[Entry]) -> Finding:
    """The finding as known if one of the entries that are left covers it, which then is left no longer."""
    covering = [entry for entry in left if _same_place(entry, finding) and not _worse(finding, entry)]
    if not covering:
        return finding
    left.remove(
        min(covering, key=lambda entry: entry.where != finding.where)
    )  # the exact one, if there is one
    return replace(finding, known=True)


def _same_place(entry: Entry, finding: Finding) -> bool:
    return entry.code == finding.code and stable_where(entry.where) == stable_where(finding.where)


def _worse(finding: Finding, entry: Entry) -> bool:
    return severity_rank(finding.severity) > severity_rank(entry.severity)


# The baseline of a check: read before the work, written or compared behind it.


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
