"""Baselines: files of known findings, so that only new or worse ones fail a check."""

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
# A module name may contain a lone surrogate, which strict UTF-8 cannot write.
ENCODING_ERRORS = "surrogatepass"


class BaselineEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A known finding: its check, target, place and severity. Its numbers may change."""

    target: str
    code: str
    name: str
    where: str
    severity: Severity


class Baseline(msgspec.Struct, frozen=True, kw_only=True):
    """The known findings of all targets of a project, sorted."""

    schema: str = BASELINE_SCHEMA
    findings: tuple[BaselineEntry, ...] = ()


def read_baseline(path: Path) -> Baseline:
    if not path.is_file():
        raise InputError(
            expected="a baseline",
            got=f"{str(path)!r}, which does not exist",
            fix=f"write one with `leadline check TARGET --write-baseline {path}`",
        )
    return decode(read_text(path, "a baseline", errors=ENCODING_ERRORS), Baseline, BASELINE_SCHEMA)


def write_baseline_file(baseline: Baseline, path: Path) -> None:
    """Write one finding per few lines, so that a code review shows what changed."""
    text = json.dumps(msgspec.to_builtins(baseline), indent=2, ensure_ascii=False)
    path.write_text(text + "\n", encoding="utf-8", errors=ENCODING_ERRORS)


def update_baseline(baseline: Baseline, reports: Iterable[Report], folder: Path) -> Baseline:
    """`baseline` with the findings of these reports; targets that were not checked keep their entries."""
    by_target = {target_key(report.target, folder): report for report in reports}
    unchanged = [entry for entry in baseline.findings if entry.target not in by_target]
    current = [_entry(finding, target) for target, report in by_target.items() for finding in report.findings]
    return Baseline(findings=tuple(sorted([*unchanged, *current], key=msgspec.structs.astuple)))


def mark_report(report: Report, baseline: Baseline, folder: Path) -> tuple[Report, tuple[BaselineEntry, ...]]:
    """The report with its known findings marked, and the entries for this target that match nothing anymore.

    A finding is known if an entry has its check and place and is at least as severe. An entry matches one finding.
    """
    target = target_key(report.target, folder)
    left = [entry for entry in baseline.findings if entry.target == target]
    marked = tuple(_marked(finding, left) for finding in report.findings)
    current = [finding for finding in (*marked, *report.ignored) if not finding.known]
    stale = tuple(entry for entry in left if not any(_same_place(entry, each) for each in current))
    return replace(report, findings=marked), stale


def target_key(target: str, folder: Path) -> str:
    """The name of a target in the baseline of `folder`, independent of the working directory."""
    where = locate(target)
    if not where.is_file:
        return target
    path = os.path.relpath(Path(where.place).resolve(), folder.resolve())
    return f"{Path(path).as_posix()}:{where.attribute}"


def _entry(finding: Finding, target: str) -> BaselineEntry:
    return BaselineEntry(
        target=target,
        code=finding.code,
        name=finding.name,
        where=finding.where,
        severity=finding.severity,
    )


def _marked(finding: Finding, left: list[BaselineEntry]) -> Finding:
    """The finding, marked as known if one of the entries in `left` covers it; removes that entry from `left`."""
    covering = [entry for entry in left if _same_place(entry, finding) and not _worse(finding, entry)]
    if not covering:
        return finding
    left.remove(
        min(covering, key=lambda entry: entry.where != finding.where)
    )  # prefer the entry with exactly this place
    return replace(finding, known=True)


def _same_place(entry: BaselineEntry, finding: Finding) -> bool:
    return entry.code == finding.code and stable_where(entry.where) == stable_where(finding.where)


def _worse(finding: Finding, entry: BaselineEntry) -> bool:
    return severity_rank(finding.severity) > severity_rank(entry.severity)


# The baseline of a check: read before the work, written or compared after it.


def read_known(baseline: Path | None, write_to: Path | None) -> Baseline:
    """The baseline so far; a file that is to be written need not exist yet."""
    path = write_to or baseline
    return Baseline() if path is None or (path == write_to and not path.exists()) else read_baseline(path)


def write_known(known: Baseline, reports: Sequence[Report], path: Path) -> Baseline:
    """Write the baseline with the findings of these reports to `path`, and return it."""
    known = update_baseline(known, reports, path.parent)
    try:
        write_baseline_file(known, path)
    except OSError as error:
        raise click.FileError(str(path), error.strerror or str(error)) from None
    amount = sum(len(report.findings) for report in reports)
    say(f"{path}: {plural(amount, 'finding')} of {plural(len(reports), 'target')} written")
    return known


def mark_known(reports: Sequence[Report], known: Baseline, path: Path) -> list[Report]:
    """The reports with known findings marked; prints the entries that match nothing anymore."""
    pairs = [mark_report(report, known, path.parent) for report in reports]
    stale = [entry for _, entries in pairs for entry in entries]
    for entry in stale:
        say(clean(f"{path}: no longer found: {entry.code} {entry.name} at {entry.where} ({entry.target})"))
    if stale:
        say(f"Update the file with --write-baseline {path}")
    return [report for report, _ in pairs]
