"""Words of others made harmless: names of modules, models and files may hold anything."""

from __future__ import annotations

FORMULA = ("=", "+", "-", "@")


def clean(text: str) -> str:
    """`text` on one line, with each character that could move the cursor, hide or reorder text spelled out.

    Module names are the user's; one may hold a newline, an escape sequence or a right-to-left override.
    """
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def clean_lines(text: str) -> str:
    """Text of several lines, each of them cleaned."""
    return "\n".join(map(clean, text.splitlines()))


def cut(text: str, most: int) -> str:
    """`text`, or its beginning and how much is left out."""
    return text if len(text) <= most else f"{text[:most]}… ({len(text) - most} characters more)"


def cell(text: str) -> str:
    """`text` for a cell of a table that a spreadsheet may open: never a formula (CWE-1236)."""
    return clean(f"'{text}" if text.startswith(FORMULA) else text)
