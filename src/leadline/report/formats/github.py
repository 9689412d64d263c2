"""github: workflow commands, which GitHub Actions shows beside the code of a pull request.

The runner takes a line that begins with "::" for a command, and an older spelling, "##[", anywhere in a line. So what
users have named is escaped in both, and no name can issue a command.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from leadline.records import Finding, Severity, Source
from leadline.records.report import Report
from leadline.report.layout import Look, joined
from leadline.report.place import place_of
from leadline.report.verdict import by_severity, headline
from leadline.text import clean, plural

MOST_ANNOTATIONS = (
    10  # of each level a step; GitHub drops the rest without a word (cited: its docs on annotations)
)
COMMANDS = {"error": "error", "warning": "warning", "info": "notice"}


class Annotation(NamedTuple):
    """One box beside the code."""

    level: Severity
    title: str
    message: str
    place: Source | None


def github(reports: Sequence[Report], look: Look) -> str:
    """An annotation for each rule that found something, at most ten of a level, and the verdict in the log."""
    found = [annotation for report in reports for annotation in _annotations(report)]
    shown = [each for level in COMMANDS for each in _within_limit([a for a in found if a.level == level])]
    lines = [_log(report) for report in reports] + [_command(each) for each in shown]
    return "".join(f"{line}\n" for line in lines)


def _annotations(report: Report) -> list[Annotation]:
    """A rule that speaks of many layers is one annotation: ten are shown, and the eleventh might be another cause."""
    groups: dict[tuple[str, str], list[Finding]] = {}
    for finding in by_severity(report.findings):
        if not finding.known:
            groups.setdefault((finding.severity, finding.code), []).append(finding)
    found = [_annotation(report, group) for group in groups.values()]
    if report.verdict == "undecided":
        found.append(Annotation("warning", _titled(report, "UNDECIDED"), headline(report), None))
    return found


def _annotation(report: Report, group: Sequence[Finding]) -> Annotation:
    first = group[0]
    lines = [f"{clean(each.where)}: {clean(each.message)}" for each in group]
    title = _titled(report, f"{first.code} {first.name}")
    return Annotation(first.severity, title, "\n".join(lines), place_of(report, first))


def _titled(report: Report, title: str) -> str:
    return clean(f"{title} ({report.target})" if report.target else title)


def _within_limit(found: Sequence[Annotation]) -> list[Annotation]:
    """All, or the first nine and one that lists the others."""
    if len(found) <= MOST_ANNOTATIONS:
        return [*found]
    kept, rest = found[: MOST_ANNOTATIONS - 1], found[MOST_ANNOTATIONS - 1 :]
    summary = "\n".join(f"{each.title}: {each.message.splitlines()[0]}" for each in rest)
    return [*kept, Annotation(rest[0].level, f"{len(rest)} further rules", summary, rest[0].place)]


def _log(report: Report) -> str:
    """A plain line of the log. It begins with the verdict, never with the mark of a command."""
    known = sum(finding.known for finding in report.findings)
    quiet = joined(
        clean(report.target),
        plural(known, "known finding") if known else "",
    )
    line = f"{headline(report)} ({quiet})" if quiet else headline(report)
    return line.replace("##[", "## [")


def _command(annotation: Annotation) -> str:
    place = annotation.place
    where = {} if place is None else {"file": clean(place.file), "line": str(place.line)}
    settings = {**where, "title": annotation.title}
    properties = ",".join(f"{key}={_escaped_property(value)}" for key, value in settings.items())
    return f"::{COMMANDS[annotation.level]} {properties}::{_escaped(annotation.message)}"


def _escaped(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _escaped_property(text: str) -> str:
    return _escaped(text).replace(":", "%3A").replace(",", "%2C")
