"""Code snippets merged into one: imports first, then functions, each once, and the rest in order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator


def split_imports(code: str) -> tuple[list[str], list[str]]:
    """The import lines, each once, and all other lines."""
    rows = code.splitlines()
    imports = dict.fromkeys(row for row in rows if row.startswith(("import ", "from ")))
    return list(imports), [row for row in rows if row not in imports]


def put_together(pieces: Iterable[str]) -> str:
    """Several snippets as one."""
    imports, rest = split_imports("\n".join(filter(None, pieces)))
    functions = list(dict.fromkeys(_functions(rest)))
    body = [row for row in _outside(rest) if row]
    return "\n".join([*imports, *(f"\n{each}\n" for each in functions), *body])


def _functions(rows: list[str]) -> Iterator[str]:
    """The source of each function that is defined."""
    text: list[str] = []
    for row in [*rows, "end"]:
        if text and row and not row.startswith(" "):
            yield "\n".join(text)
            text = []
        if row.startswith("def ") or (text and row):
            text.append(row)


def _outside(rows: list[str]) -> Iterator[str]:
    """The lines outside of functions."""
    inside = False
    for row in rows:
        inside = row.startswith("def ") or (inside and (not row or row.startswith(" ")))
        if not inside:
            yield row
