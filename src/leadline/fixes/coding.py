"""Generated code made short: blocks that are alike but for some names and numbers become one loop over these."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import groupby

ROW = 99  # characters of a line of generated code
LITERAL = re.compile(r'"(?:[^"\\\n]|\\.)*"|\'(?:[^\'\\\n]|\\.)*\'|\b\d+(?:\.\d+)?(?:e[+-]?\d+)?\b')
"""A string or a number; digits inside a name do not count."""
QUOTES = ('"', "'")

Block = tuple[str, ...]


def looped(blocks: Sequence[Block]) -> Iterator[str]:
    """The lines of all blocks in their order, neighbours with the same skeleton as a loop."""
    for _, group in groupby(blocks, key=_skeleton):
        alike = list(group)
        columns = _columns(alike)
        if len(alike) < 2 or not columns:
            yield from (line for block in alike for line in block)
        else:
            yield from _loop(alike[0], columns)


def _skeleton(block: Block) -> Block:
    """The lines with their literals left out; a string and a number are told apart."""
    return tuple(
        LITERAL.sub(lambda found: '"' if found[0].startswith(QUOTES) else "0", line) for line in block
    )


def _columns(alike: Sequence[Block]) -> dict[int, tuple[str, ...]]:
    """By place, the literals of all blocks that are not the same in each."""
    rows = [LITERAL.findall("\n".join(block)) for block in alike]
    return {place: column for place, column in enumerate(zip(*rows, strict=True)) if len(set(column)) > 1}


def _loop(first: Block, columns: dict[int, tuple[str, ...]]) -> Iterator[str]:
    names = _names(columns)
    distinct = list(dict.fromkeys(columns.values()))
    variables = [names[column] for column in distinct]
    rows = list(zip(*distinct, strict=True))
    yield f"for {', '.join(variables)} in ("
    yield from _packed([f"({', '.join(row)})," if len(row) > 1 else f"{row[0]}," for row in rows])
    yield "):"
    yield from (f"    {line}" for line in _with_variables(first, columns, names))


def _names(columns: dict[int, tuple[str, ...]]) -> dict[tuple[str, ...], str]:
    """A variable for each sequence of literals; places that always hold the same share one."""
    found: dict[tuple[str, ...], str] = {}
    for column in columns.values():
        kind = "name" if column[0].startswith(QUOTES) else "number"
        count = sum(each.startswith(kind) for each in found.values())
        found.setdefault(column, kind if not count else f"{kind}_{count + 1}")
    return found


def _with_variables(
    block: Block, columns: dict[int, tuple[str, ...]], names: dict[tuple[str, ...], str]
) -> list[str]:
    places = iter(range(len(LITERAL.findall("\n".join(block)))))

    def variable(found: re.Match[str]) -> str:
        column = columns.get(next(places))
        return found[0] if column is None else names[column]

    return LITERAL.sub(variable, "\n".join(block)).split("\n")


def _packed(words: Sequence[str]) -> Iterator[str]:
    """Words in indented lines, none of which is broken."""
    row = "   "
    for word in words:
        if len(row) + len(word) > ROW and row.strip():
            yield row
            row = "   "
        row += f" {word}"
    yield row
