"""md: Markdown with tables, for the summary of a job or a comment on a pull request."""

from __future__ import annotations

import re
from collections.abc import Sequence

from leadline.records import Finding, Profile
from leadline.records.report import Report
from leadline.report.depth import block_summary, legend, sparkline, stream_blocks
from leadline.report.layout import Look
from leadline.report.place import place_of
from leadline.report.terminal import limit_of, used_of
from leadline.report.verdict import TITLES, by_severity, sentence
from leadline.text import clean, count, number, plural

SPARK = 40
"""Characters of a sparkline: what fits on a page beside its numbers."""
_SPECIAL = re.compile(r"[\\`*_\[\]|~#]")
_BACKTICKS = re.compile(r"`+")


def md(reports: Sequence[Report], look: Look) -> str:
    """A section for each report: verdict, facts, findings, and the signal along the depth."""
    return "\n".join(_section(report) for report in reports)


def _section(report: Report) -> str:
    profile = report.profile
    parts = [
        f"## {TITLES[report.verdict]}: {prose(sentence(report))}",
        _facts(report),
        _findings(report),
        _signal(profile),
        _margins(report),
        _coverage(report),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _facts(report: Report) -> str:
    profile = report.profile
    facts = [
        code(report.target) if report.target else "",
        code(profile.model),
        plural(profile.parameters, "parameter"),
        block_summary(profile.blocks),
        f"loss {number(profile.loss)}",
    ]
    return " · ".join(fact for fact in facts if fact)


def _findings(report: Report) -> str:
    rows = [_row(report, each, "known" if each.known else "") for each in by_severity(report.findings)]
    rows += [_row(report, each, "ignored") for each in by_severity(report.ignored)]
    if not rows:
        asked = f" by {plural(len(report.rules), 'rule')}" if report.rules else ""
        return f"Nothing was found{asked}."
    return table(("severity", "rule", "where", "what"), rows)


def _row(report: Report, finding: Finding, mark: str) -> tuple[str, ...]:
    place = place_of(report, finding)
    source = f" in {code(f'{place.file}:{place.line}')}" if place else ""
    severity = f"{finding.severity} ({mark})" if mark else finding.severity
    rule = prose(f"{finding.code} {finding.name}")
    return severity, rule, f"{code(finding.where)}{source}", prose(finding.message)


def _signal(profile: Profile) -> str:
    """Both moments of each stream as a sparkline between its ends, and the meaning of any mark in them."""
    rows, drawn = [], []
    for index, stream in enumerate(profile.streams):
        blocks = stream_blocks(profile, index)
        moments = {
            "forward →": [each.forward_ms for each in blocks],
            "backward ←": [each.backward_ms for each in blocks],
        }
        for label, values in moments.items() if blocks else ():
            ends = number(values[0]), number(values[-1])
            rows.append((code(stream.input or "input"), label, code(sparkline(values, SPARK)), *ends))
            drawn += values
    marks = ", ".join(f"{code(sign)} {meaning}" for sign, meaning in legend(drawn).items())
    shown = table(("from", "signal", "mean square, log scale", "first block", "last block"), rows)
    return "\n\n".join(filter(None, (shown, marks))) if rows else ""


def _margins(report: Report) -> str:
    """How far from trouble, folded away: it is the evidence, not the news."""
    if not report.margins:
        return ""
    rows = [
        (prose(each.quantity), number(each.value), limit_of(each), used_of(each), each.code)
        for each in report.margins
    ]
    shown = table(("quantity", "measured", "limit", "used", "rule"), rows)
    return f"<details><summary>How far from trouble</summary>\n\n{shown}\n\n</details>"


def _coverage(report: Report) -> str:
    seen = report.coverage
    lines = [
        f"Seen: {count(seen.ops_known)} of {count(seen.ops)} ops known, {count(seen.forward)} of "
        f"{count(seen.values)} values measured forward, {count(seen.backward)} backward."
    ]
    gaps = [f"- {prose(gap.what)}: {prose(gap.why)}" for gap in seen.gaps]
    return "\n".join([*lines, *(["", *gaps] if gaps else [])])


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table of Markdown; the cells are Markdown already."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def prose(text: str) -> str:
    """`text` as words of a sentence: nothing in it is taken for Markdown, HTML, or a call of somebody's name."""
    plain = _SPECIAL.sub(lambda found: f"\\{found[0]}", clean(text))
    for sign, harmless in (
        ("&", "&amp;"),
        ("<", "&lt;"),
        (">", "&gt;"),
        ("@", "@<!-- -->"),
        ("://", ":<!-- -->//"),
    ):
        plain = plain.replace(sign, harmless)
    return plain


def code(text: str) -> str:
    """`text` as code, also in a cell of a table, where a bar ends the cell even between backticks."""
    plain = clean(text).replace("|", "\\|")
    fence = "`" * (max(map(len, _BACKTICKS.findall(plain)), default=0) + 1)
    room = " " if plain[:1] in ("`", " ", "") or plain[-1:] in ("`", " ") else ""
    return f"{fence}{room}{plain}{room}{fence}"
