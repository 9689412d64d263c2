"""A page as Markdown with tables, for the summary of a job or a comment on a pull request."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from leadline.records import Gap
from leadline.report.charts.sparkline import draw_spark
from leadline.report.page import (
    Cell,
    Code,
    Column,
    Commands,
    Details,
    Element,
    FactList,
    FindingItem,
    Findings,
    Gaps,
    Group,
    OutcomeItem,
    Outcomes,
    Page,
    Paragraph,
    Spark,
    Steps,
    Table,
)
from leadline.text import clean, code_spans, plural

# Heuristic: characters of a sparkline that fit on a page next to their numbers.
SPARK_CHARACTERS = 40
_SPECIAL = re.compile(r"[\\`*_\[\]|~#]")
_BACKTICKS = re.compile(r"`+")
_ENTITIES = (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ("@", "@<!-- -->"), ("://", ":<!-- -->//"))


def render(page: Page) -> str:
    """The headline, the facts in one line, and the brief form of each section."""
    names = [code(each.value) if each.is_name else prose(each.words) for each in page.facts.rows]
    if code(page.subject) not in names:
        names.insert(0, code(page.subject))
    parts = [_draw(each) for section in page.terminal_sections for each in section.brief]
    first = (f"## {prose(page.headline)}", prose(page.asked), " · ".join(names))
    return "\n\n".join(part for part in (*first, *parts) if part) + "\n"


def _draw(element: Element) -> str:
    """One element; charts are left out."""
    match element:
        case FactList():
            return "\n".join(f"- {prose(each.label)}: {prose(each.value)}" for each in element.rows)
        case Paragraph():
            return prose(element.words)
        case Table():
            return _table(element)
        case Group():
            return "\n\n".join(map(_draw, element.items))
        case Details():
            inside = "\n\n".join(map(_draw, element.items))
            return f"<details><summary>{prose(element.title)}</summary>\n\n{inside}\n\n</details>"
        case Findings():
            return _findings(element)
        case Outcomes():
            return _outcomes(element.items)
        case Gaps():
            return "\n".join(map(_gap, element.items))
        case Code():
            return _code(element)
        case Commands():
            return "\n".join(f"- {code(each.line)} {prose(each.purpose)}" for each in element.rows)
        case Steps():
            return "\n".join(
                f"{place}. {_sentence(each.title)}" for place, each in enumerate(element.items, 1)
            )
    return ""


def _table(element: Table) -> str:
    titles = [_title(column) for column in element.columns]
    rows = [
        [_cell(column, cell) for column, cell in zip(element.columns, row, strict=True)]
        for row in element.rows
    ]
    return table(titles, rows)


def _title(column: Column) -> str:
    ends = f" from {code(column.ends[0])} to {code(column.ends[1])}" if any(column.ends) else ""
    return f"{column.title}{ends}"


def _cell(column: Column, cell: Cell) -> str:
    if isinstance(cell, Spark):
        return code(draw_spark(cell, SPARK_CHARACTERS))
    return code(cell) if column.kind == "name" else prose(cell)


def _findings(findings: Findings) -> str:
    """The roots, each followed by its consequences, then what is ignored."""
    roots = [row for item in findings.items for row in _finding_rows(item)]
    ignored = [_finding_row(item, "") for item in findings.ignored]
    notes = [row for item in findings.notes for row in _finding_rows(item)]
    if not roots and not ignored and not notes:
        return f"Findings: {prose(findings.none)}."
    heads = ("severity", "check", "where", "what was measured", "what to do")
    counted = plural(len(notes), "note")
    folded = f"<details><summary>{counted}</summary>\n\n{table(heads, notes)}\n\n</details>"
    shown = table(heads, [*roots, *ignored]) if roots or ignored else ""
    return "\n\n".join(part for part in (shown, folded if notes else "") if part)


def _finding_rows(item: FindingItem) -> Iterator[tuple[str, ...]]:
    yield _finding_row(item, "")
    for each in item.consequences:
        yield _finding_row(each, f"follows from {item.code}")


def _finding_row(item: FindingItem, instead: str) -> tuple[str, ...]:
    source = f" in {code(item.place)}" if item.place else ""
    severity = f"{item.severity} ({item.mark})" if item.mark else item.severity
    check = prose(f"{item.code} {item.name}")
    return (
        severity,
        check,
        f"{code(item.where)}{source}",
        prose(item.message),
        _sentence(item.action or instead),
    )


def _sentence(words: str) -> str:
    """Words in which backticks mark code."""
    return "".join(code(part) if is_code else prose(part) for part, is_code in code_spans(words))


def _outcomes(items: Sequence[OutcomeItem]) -> str:
    rows = [
        (
            f"**{each.state}**, kept" if each.kept else each.state,
            code(each.fix),
            prose(each.answers),
            each.change,
            prose(each.title),
            prose(each.why),
        )
        for each in items
    ]
    return (
        table(("outcome", "fix", "for", "change", "what", "measured"), rows) if rows else "Nothing was tried."
    )


def _gap(gap: Gap) -> str:
    return f"- {prose(gap.what)}: {prose(gap.why)}"


def _code(element: Code) -> str:
    longest = max(map(len, _BACKTICKS.findall(element.text)), default=0)
    fence = "`" * max(3, longest + 1)
    return "\n".join([f"{fence}{element.language}", *map(clean, element.text.splitlines()), fence])


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table whose cells are Markdown already."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def prose(text: str) -> str:
    """`text` as words of a sentence: nothing in it is taken for Markdown, HTML, or a mention of somebody's name."""
    plain = _SPECIAL.sub(lambda match: f"\\{match[0]}", clean(text))
    for sign, harmless in _ENTITIES:
        plain = plain.replace(sign, harmless)
    return plain


def code(text: str) -> str:
    """`text` as code, also in a cell of a table, where a bar ends the cell even between backticks."""
    plain = clean(text).replace("|", "\\|")
    fence = "`" * (max(map(len, _BACKTICKS.findall(plain)), default=0) + 1)
    room = " " if plain[:1] in ("`", " ", "") or plain[-1:] in ("`", " ") else ""
    return f"{fence}{room}{plain}{room}{fence}"
