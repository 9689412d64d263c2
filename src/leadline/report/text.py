"""Words and numbers for a report: hostile names made harmless, numbers with three significant digits."""

from __future__ import annotations

import re
import shlex

from rich.cells import cell_len

from leadline.drawing.numbers import NOT_MEASURED, count, factor, number, plural, share, signed
from leadline.words import clean, clean_lines

__all__ = [
    "NOT_MEASURED",
    "clean",
    "clean_lines",
    "count",
    "factor",
    "first_clause",
    "number",
    "plural",
    "quoted",
    "share",
    "shorten",
    "signed",
]

_CLAUSE = re.compile(r"(?<=[.!?])\s+(?=[A-Z])|[:;]\s")


def shorten(text: str, width: int) -> str:
    """`text` in at most `width` terminal cells; what is cut is cut from the middle, where names differ least."""
    if cell_len(text) <= width:
        return text
    for kept in range(width - 1, 0, -1):
        candidate = text[: (kept + 1) // 2] + "…" + text[len(text) - kept // 2 :]
        if cell_len(candidate) <= width:
            return candidate
    return "…"[:width]


def first_clause(text: str) -> str:
    """`text` up to its first full stop, colon or semicolon; one inside a number or a name does not end it."""
    return _CLAUSE.split(text.strip(), maxsplit=1)[0].rstrip(".")


def quoted(target: str) -> str:
    """`target` as one word of a shell: what a terminal must not see is spelled out first."""
    return shlex.quote(clean(target))
