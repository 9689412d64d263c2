"""Pieces of code put together: imports once and first, the rest in order."""

from __future__ import annotations

from collections.abc import Iterable


def split_imports(code: str) -> tuple[list[str], list[str]]:
    """Lines that import, each once, and all others."""
    rows = code.splitlines()
    imports = dict.fromkeys(row for row in rows if row.startswith(("import ", "from ")))
    return list(imports), [row for row in rows if row not in imports]


def put_together(pieces: Iterable[str]) -> str:
    """Several snippets as one."""
    imports, rest = split_imports("\n".join(filter(None, pieces)))
    return "\n".join([*imports, *rest])
