"""The findings of a report, the worst first, in as many lines as there are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import accumulate

from rich.text import Text

from leadline.records import Finding
from leadline.report.layout import LABEL, QUIET, TONES, labelled, wrapped
from leadline.report.text import clean, plural
from leadline.report.verdict import rooted

MESSAGE_LINES = 4
FIRST_LINES = 6  # of the first finding: its message ends with the cause, which is what one came for


def finding_lines(findings: Sequence[Finding], width: int, *, room: int | None = None) -> list[Text]:
    """A summary line, then each root with its message and what it leads to; with `room`, as many as fit."""
    entries = [
        _entry(root, below, width, _most(room, MESSAGE_LINES if place else FIRST_LINES))
        for place, (root, below) in enumerate(rooted(findings))
    ]
    shown = len(entries) if room is None else _fitting([len(entry) for entry in entries], room - 1)
    lines = labelled("findings", _summary(findings), width)
    lines += [line for entry in entries[:shown] for line in entry]
    if shown < len(entries):
        more = f"and {plural(len(entries) - shown, 'further finding')}: -v shows all"
        lines += labelled("", Text(more, style=QUIET), width)
    return lines


def _most(room: int | None, lines: int) -> int | None:
    return None if room is None else min(lines, max(room - 3, 1))


def ignored_lines(ignored: Sequence[Finding], width: int) -> list[Text]:
    """What was found and does not count, because the user said so."""
    found = Counter(f"{finding.code} {finding.name}" for finding in ignored)
    rules = ", ".join(
        f"{clean(rule)}{f' ({amount})' if amount > 1 else ''}" for rule, amount in found.items()
    )
    return labelled("ignored", rules, width, most=2) if ignored else []


def _fitting(lengths: list[int], room: int) -> int:
    """How many entries fit, and a line that counts the rest; the first is always shown."""
    ends = list(accumulate(lengths))
    if not ends or ends[-1] <= room:
        return len(ends)
    return max(sum(end < room for end in ends), 1)


def _summary(findings: Sequence[Finding]) -> str:
    amounts = Counter(finding.severity for finding in findings)
    kinds = ((amounts["error"], "error"), (amounts["warning"], "warning"), (amounts["info"], "note"))
    return ", ".join(plural(amount, noun) for amount, noun in kinds if amount) or "none"


def _entry(finding: Finding, below: Sequence[Finding], width: int, most: int | None) -> list[Text]:
    severity = (finding.severity.ljust(LABEL - 2), TONES[finding.severity])
    rule = (clean(f"{finding.code} {finding.name}"), "bold")
    known = (" (known)", QUIET) if finding.known else ""
    title = Text.assemble("  ", severity, rule, known, "  ", clean(finding.where))
    lines = [*wrapped(title, width, most=1), *labelled("", clean(finding.message), width, most=most)]
    return lines + (_consequences(below, width, detailed=most is None) if below else [])


def _consequences(below: Sequence[Finding], width: int, *, detailed: bool) -> list[Text]:
    """What a root leads to: one line of names, or all of their messages."""
    if detailed:
        told = [f"leads to {each.code} {each.name}, {each.where}: {each.message}" for each in below]
        return [line for text in told for line in labelled("", Text(clean(text)), width)]
    names = ", ".join(f"{each.code} {each.name}" for each in below)
    return labelled("", Text(f"leads to {clean(names)}", style=QUIET), width, most=2)
