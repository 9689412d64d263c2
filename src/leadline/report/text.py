"""Words and numbers for a report: hostile names made harmless, numbers with three significant digits."""

from __future__ import annotations

import math
import re

from rich.cells import cell_len

NOT_MEASURED = "n/a"
_THOUSANDS = ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k"))
_EXPONENT = re.compile(r"e([+-])0*(\d+)$")
_CLAUSE = re.compile(r"(?<=[.!?])\s+(?=[A-Z])|[:;]\s")


def clean(text: str) -> str:
    """`text` on one line, with each character that could move the cursor, hide or reorder text spelled out.

    Module names are the user's; one may hold a newline, an escape sequence or a right-to-left override.
    """
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def shorten(text: str, width: int) -> str:
    """`text` in at most `width` terminal cells; what is cut is cut from the middle, where names differ least."""
    if cell_len(text) <= width:
        return text
    for kept in range(width - 1, 0, -1):
        candidate = text[: (kept + 1) // 2] + "…" + text[len(text) - kept // 2 :]
        if cell_len(candidate) <= width:
            return candidate
    return "…"[:width]


def number(value: float | None) -> str:
    """`value` with three significant digits. None, NaN, infinity and exact zero each have a spelling of their own."""
    if value is None:
        return NOT_MEASURED
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Inf" if value > 0 else "-Inf"
    return "0" if value == 0 else _tidy(f"{value:#.3g}")


def factor(value: float | None) -> str:
    """`value` as something that is multiplied by."""
    return NOT_MEASURED if value is None else f"×{number(value)}"


def count(amount: int) -> str:
    """A whole number: exact below ten thousand, then with three digits and a unit."""
    if abs(amount) < 10_000:
        return str(amount)
    size, unit = next((size, unit) for size, unit in _THOUSANDS if abs(amount) >= size)
    return f"{_tidy(f'{amount / size:#.3g}')}{unit}"


def plural(amount: int, noun: str) -> str:
    """ "1 block", "2 blocks", "no blocks"."""
    return f"{count(amount) if amount else 'no'} {noun}{'' if amount == 1 else 's'}"


def first_clause(text: str) -> str:
    """`text` up to its first full stop, colon or semicolon; one inside a number or a name does not end it."""
    return _CLAUSE.split(text.strip(), maxsplit=1)[0].rstrip(".")


def _tidy(digits: str) -> str:
    """`1.00e-05` as `1.00e-5`, and `123.` as `123`."""
    return _EXPONENT.sub(lambda found: f"e{found[1].strip('+')}{found[2]}", digits).rstrip(".")
