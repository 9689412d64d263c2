"""The layout of terminal pages: widths, styles, and labels with wrapped text."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

# Heuristic: cells of the label at the left of a line, ten characters and a space.
LABEL = 11
# Derived: cells of a number; "-1.23e-300" is the longest.
NUMBER = 10
# Heuristic: cells of a page; narrower pages break names into pieces, wider ones are hard to read.
MIN_WIDTH, MAX_WIDTH = 50, 120
# Heuristic: what fits on a screen.
MAX_PAGE_LINES = 40

ACCENT = "cyan"
QUIET = "dim"
_GOOD, _FAIR, _BAD, _NEUTRAL = "bold green", "bold yellow", "bold red", "bold"
TONES = {
    "trains": _GOOD,
    "poor": _FAIR,
    "fails": _BAD,
    "undecided": _NEUTRAL,
    "info": _NEUTRAL,
    "warning": _FAIR,
    "error": _BAD,
    "verified": _GOOD,
    "refuted": _BAD,
    "not run": QUIET,
}
"""The style of a verdict, of a severity, and of the state of a fix."""


def labeled(label: str, body: Text | str, width: int, *, most: int | None = None) -> list[Text]:
    """`body` wrapped in the column right of `label`; with `most`, cut after that many lines and marked with "…"."""
    lines = wrapped(body, width - LABEL, most=most)
    heads = [Text(label[:LABEL].ljust(LABEL), style=QUIET), *(Text(" " * LABEL) for _ in lines[1:])]
    return [Text.assemble(head, line) for head, line in zip(heads, lines, strict=True)]


def wrapped(body: Text | str, width: int, *, most: int | None = None) -> list[Text]:
    """`body` as lines of at most `width` cells. Words longer than a line are broken."""
    text = body if isinstance(body, Text) else Text(body)
    lines = list(text.wrap(Console(width=width), width)) or [Text()]
    for line in lines:
        line.rstrip()
    if most is None or len(lines) <= most:
        return lines
    last = lines[most - 1]
    last.truncate(width - 2)
    last.append(" …")
    return lines[:most]
