"""Text for people: names made harmless, and numbers in three significant digits."""

from __future__ import annotations

import math
import re
import shlex

NOT_MEASURED = "n/a"
RANGE = " … "
"""Between the first and the last name of a range of layers."""

# Characters at which a spreadsheet takes a cell for a formula.
_FORMULA_SIGNS = ("=", "+", "-", "@")
_UNITS = ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k"))
_EXPONENT = re.compile(r"e([+-])0*(\d+)$")
_CLAUSE = re.compile(r"(?<=[.!?])\s+(?=[A-Z])|[:;]\s")


def clean(text: str) -> str:
    """`text` on one line, with each character that could move the cursor or hide or reorder text spelled out.

    Module names come from the user; one may hold a newline, an escape sequence or a right-to-left override.
    """
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def clean_lines(text: str) -> str:
    """Text of several lines, each of them cleaned."""
    return "\n".join(map(clean, text.splitlines()))


def cut(text: str, most: int) -> str:
    """`text`, or its first `most` characters and how many are left out."""
    return text if len(text) <= most else f"{text[:most]}… ({len(text) - most} characters more)"


def cell(text: str) -> str:
    """`text` for a cell of a table that a spreadsheet may open: never a formula (CWE-1236)."""
    return clean(f"'{text}" if text.startswith(_FORMULA_SIGNS) else text)


def quoted(target: str) -> str:
    """`target` as one word of a shell, cleaned first."""
    return shlex.quote(clean(target))


def on_batches(batches: int, *, is_split: bool = False) -> str:
    """Where the steps of a rehearsal were made: "on this batch", "on half of this batch", or "on 4 batches in turn"."""
    if batches > 1:
        return f"on {batches} batches in turn"
    return "on half of this batch" if is_split else "on this batch"


def joined(*parts: str) -> str:
    """Short facts in one line; empty ones are left out."""
    return " · ".join(part for part in parts if part)


def code_spans(text: str) -> list[tuple[str, bool]]:
    """Split at pairs of backticks: each part, and whether it is code. An unpaired backtick stays in the text."""
    parts = text.split("`")
    if len(parts) % 2 == 0:
        parts[-2:] = [f"{parts[-2]}`{parts[-1]}"]
    return [(part, index % 2 == 1) for index, part in enumerate(parts) if part]


def first_clause(text: str) -> str:
    """`text` up to its first full stop, colon or semicolon; one inside a number or a name does not end it."""
    return _CLAUSE.split(text.strip(), maxsplit=1)[0].rstrip(".")


def layer_label(name: str) -> str:
    """A block or a range of blocks in a sentence: "layers.3", but "layer 58" if the name is only a number."""
    first, is_range, last = name.partition(RANGE)
    if is_range and first.isdigit() and last.isdigit():
        return f"layers {name}"
    return f"layer {name}" if name.isdigit() else name


# Numbers in words.


def number(value: float | None) -> str:
    """`value` with three significant digits; None is "n/a", and NaN, infinity and exact zero are named as such."""
    if value is None:
        return NOT_MEASURED
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Inf" if value > 0 else "-Inf"
    return "0" if value == 0 else _tidy(f"{value:#.3g}")


def signed(value: float | None) -> str:
    """`value` as a change: a positive one has its sign, too."""
    words = number(value)
    return f"+{words}" if value is not None and value > 0 else words


def factor(value: float | None) -> str:
    """`value` as a factor: ×0.154."""
    return NOT_MEASURED if value is None else f"×{number(value)}"


def growth(e_folds: float) -> float:
    """Return the factor of so many e-folds; infinity where no float holds it, because a file may claim any number."""
    try:
        return math.exp(e_folds)
    except OverflowError:
        return math.inf


def power(e_folds: float) -> str:
    """The factor $e^x$, also if a float cannot hold it: ×0.154, or ×10^-412."""
    decades = e_folds / math.log(10)
    if math.isfinite(decades) and abs(decades) > 300:
        return f"×10^{decades:.0f}"
    return factor(math.exp(e_folds)) if decades < 300 else factor(math.inf)


def share(part: float | None) -> str:
    """A part of a whole in percent: no more digits than are meaningful, and "0 %" only for zero."""
    if part is None or not math.isfinite(part):
        return number(part)
    percent = 100 * part
    if percent == 0:
        return "0 %"
    if abs(percent) < 0.1:
        return "< 0.1 %" if percent > 0 else "> −0.1 %"
    return f"{percent:.3g} %" if abs(percent) < 10 else f"{percent:.0f} %"


def count(amount: int) -> str:
    """A whole number: exact below ten thousand, then with three digits and a unit."""
    if abs(amount) < 10_000:
        return str(amount)
    size, unit = next((size, unit) for size, unit in _UNITS if abs(amount) >= size)
    return f"{_tidy(f'{amount / size:#.3g}')}{unit}"


def plural(amount: int, noun: str) -> str:
    """ "1 block", "2 blocks", "no blocks"; "2 fixes"."""
    ending = "es" if noun.endswith("x") else "s"
    return f"{count(amount) if amount else 'no'} {noun}{'' if amount == 1 else ending}"


def _tidy(digits: str) -> str:
    """`1.00e-05` as `1.00e-5`, and `123.` as `123`."""
    return _EXPONENT.sub(lambda match: f"e{match[1].strip('+')}{match[2]}", digits).rstrip(".")
