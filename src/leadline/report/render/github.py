"""GitHub workflow commands, which GitHub Actions shows next to the code of a pull request.

The runner takes a line that begins with "::" for a command, and an older spelling, "##[", anywhere in a line. Names
from the user's code are escaped in both, so that no name can issue a command.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from leadline.records import Finding, Severity, Source
from leadline.records.report import Report
from leadline.report.place import place_of
from leadline.report.verdict import by_severity, headline, message_with_action
from leadline.text import clean, joined, plural

# Cited: GitHub's documentation of annotations; of each level and step, it silently drops the rest.
MAX_ANNOTATIONS = 10
COMMANDS = {"error": "error", "warning": "warning", "info": "notice"}


class Annotation(NamedTuple):
    """One box next to the code."""

    level: Severity
    title: str
    message: str
    place: Source | None


def render(reports: Sequence[Report]) -> str:
    """One annotation per check that found something, at most ten of a level, and the verdict in the log."""
    annotations = [annotation for report in reports for annotation in _annotations(report)]
    shown = [
        each
        for level in COMMANDS
        for each in _within_limit([each for each in annotations if each.level == level])
    ]
    lines = [_log(report) for report in reports] + [_command(each) for each in shown]
    return "".join(f"{line}\n" for line in lines)


def _annotations(report: Report) -> list[Annotation]:
    """All findings of a check are one annotation: only ten are shown, and the eleventh might be another cause."""
    groups: dict[tuple[str, str], list[Finding]] = {}
    for finding in by_severity(report.findings):
        if not finding.known:
            groups.setdefault((finding.severity, finding.code), []).append(finding)
    annotations = [_annotation(report, group) for group in groups.values()]
    if report.verdict == "undecided":
        annotations.append(Annotation("warning", _titled(report, "UNDECIDED"), headline(report), None))
    return annotations


def _annotation(report: Report, group: Sequence[Finding]) -> Annotation:
    first = group[0]
    lines = [f"{clean(each.where)}: {clean(message_with_action(each))}" for each in group]
    title = _titled(report, f"{first.code} {first.name}")
    return Annotation(first.severity, title, "\n".join(lines), place_of(report, first))


def _titled(report: Report, title: str) -> str:
    return clean(f"{title} ({report.target})" if report.target else title)


def _within_limit(annotations: Sequence[Annotation]) -> list[Annotation]:
    """All, or the first nine and one that lists the others."""
    if len(annotations) <= MAX_ANNOTATIONS:
        return [*annotations]
    kept, rest = annotations[: MAX_ANNOTATIONS - 1], annotations[MAX_ANNOTATIONS - 1 :]
    summary = "\n".join(f"{each.title}: {each.message.splitlines()[0]}" for each in rest)
    return [*kept, Annotation(rest[0].level, f"{len(rest)} further checks", summary, rest[0].place)]


def _log(report: Report) -> str:
    """A plain line of the log. It begins with the verdict, never with the sign of a command."""
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
