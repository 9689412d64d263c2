"""Shorten generated code: equal lines for one layer after another become a loop."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

# Heuristic: a common limit of formatters; longer lines of generated code are broken.
MAX_LINE_LENGTH = 99
TEXT = r'(?:[^"\\\n]|\\.)*'
"""What may stand between double quotes."""
NUMBER = re.compile(rf'"{TEXT}"|\'(?:[^\'\\\n]|\\.)*\'|\b\d+(?:\.\d+)?(?:e[+-]?\d+)?\b')
"""A number. Strings are matched so that they can be skipped; digits inside a name do not count."""
LAYER = re.compile(r"(?:.*?\.)??\d+(?=\.|$)")
"""The start of a path up to its first numeric part: the layer that it belongs to."""
NUMBERED_NAME = re.compile(r".*?\d(?=\.|$)")
"""For paths without a numeric part: the start up to the first name that ends in a digit."""
LAYER_MARK = "\0"
"""Stands for the path of the layer in code of which a loop is made."""


class CodeBlock(NamedTuple):
    """The lines of code for one layer."""

    layer: str
    """Path of the layer; "" for code that belongs to none."""
    lines: tuple[str, ...]


class NumberedPaths(NamedTuple):
    """Paths that differ only in a last number."""

    stem: str
    numbers: range


def layer_of(path: str) -> str:
    """The layer of a stack that a module or parameter belongs to; the path itself if it has no number."""
    match = LAYER.match(path) or NUMBERED_NAME.match(path)
    return match[0] if match else path


def loop_code(blocks: Sequence[CodeBlock]) -> Iterator[str]:
    """The lines of all blocks in order.

    Neighboring blocks whose lines differ only in the path of the layer become a loop over layers; those that also
    differ in some numbers become a loop over layers and numbers.
    """
    runs = [list(run) for _, run in groupby(blocks, key=_form)]
    for _, alike in groupby(runs, key=lambda run: (len(run) > 1, _shape(run))):
        members = [block for run in alike for block in run]
        if len(members) == 1 or not members[0].layer:
            yield from (line for block in members for line in block.lines)
        else:
            yield from _loop(members)


def _form(block: CodeBlock) -> tuple[str, ...]:
    """The lines with the path of the layer replaced by a mark."""
    if not block.layer:
        return block.lines
    path = re.compile(rf'"{re.escape(block.layer)}(?=[."])')
    return tuple(path.sub(f'"{LAYER_MARK}', line) for line in block.lines)


def _shape(run: Sequence[CodeBlock]) -> tuple[str, ...]:
    """What blocks must have in common to share a loop: for a single block, everything except its numbers."""
    form = _form(run[0])
    return form if len(run) > 1 else tuple(NUMBER.sub(_without_number, line) for line in form)


def _without_number(match: re.Match[str]) -> str:
    return match[0] if match[0].startswith(('"', "'")) else "0"


def _loop(members: Sequence[CodeBlock]) -> Iterator[str]:
    """A loop over the blocks. Positions that always hold the same numbers share one variable."""
    form, columns = "\n".join(_form(members[0])), _columns(members)
    distinct = list(dict.fromkeys(columns.values()))
    names = {column: f"number_{i + 1}" if i else "number" for i, column in enumerate(distinct)}
    layers = [block.layer for block in members]
    counted = numbered_paths(layers)
    yield from _header(layers, counted, distinct, list(names.values()))
    for line in _with_variables(form, columns, names).split("\n"):
        yield f"    {_with_layer(line, counted)}"


def _columns(members: Sequence[CodeBlock]) -> dict[int, tuple[str, ...]]:
    """The numbers that differ between blocks, by their position in the code."""
    rows = [NUMBER.findall("\n".join(_form(block))) for block in members]
    return {place: column for place, column in enumerate(zip(*rows, strict=True)) if len(set(column)) > 1}


def numbered_paths(layers: Sequence[str]) -> NumberedPaths | None:
    """The layers as a range, if they share a stem and their numbers rise in equal steps."""
    matches = [re.fullmatch(r"(.*?)(\d+)", layer) for layer in layers]
    parts = [(each[1], int(each[2])) for each in matches if each and each[2] == str(int(each[2]))]
    if len(parts) < len(layers) or len({stem for stem, _ in parts}) > 1:
        return None
    first, last = parts[0][1], parts[-1][1]
    step = parts[1][1] - first
    numbers = range(first, last + 1, step) if step > 0 else range(0)
    return NumberedPaths(parts[0][0], numbers) if list(numbers) == [number for _, number in parts] else None


def _header(
    layers: Sequence[str], counted: NumberedPaths | None, columns: list[tuple[str, ...]], names: list[str]
) -> Iterator[str]:
    """The `for` statement that names a layer and its numbers."""
    if counted is None:
        quoted = tuple(f'"{layer}"' for layer in layers)
        rows = list(zip(quoted, *columns, strict=True))
        yield from _listed(f"for {', '.join(['name', *names])} in (", rows, "):")
    elif not columns:
        yield f"for i in {_range(counted.numbers)}:"
    else:
        values = names[0] if len(names) == 1 else f"({', '.join(names)})"
        rows = list(zip(*columns, strict=True))
        yield from _listed(f"for i, {values} in zip({_range(counted.numbers)}, (", rows, ")):")


def _listed(head: str, rows: Sequence[tuple[str, ...]], tail: str) -> Iterator[str]:
    """A literal of rows, on one line if it fits."""
    words = [f"({', '.join(row)})," if len(row) > 1 else f"{row[0]}," for row in rows]
    line = f"{head}{' '.join(words)[:-1]}{tail}"
    if len(line) <= MAX_LINE_LENGTH:
        yield line
        return
    yield head
    yield from _packed(words)
    yield tail


def _range(numbers: range) -> str:
    start, stop, step = numbers[0], numbers[-1] + 1, numbers.step
    if step > 1:
        return f"range({start}, {stop}, {step})"
    return f"range({start}, {stop})" if start else f"range({stop})"


def _with_variables(form: str, columns: dict[int, tuple[str, ...]], names: dict[tuple[str, ...], str]) -> str:
    places = iter(range(len(NUMBER.findall(form))))

    def variable(match: re.Match[str]) -> str:
        column = columns.get(next(places))
        return match[0] if column is None else names[column]

    return NUMBER.sub(variable, form)


def _with_layer(line: str, counted: NumberedPaths | None) -> str:
    """The line with the path of the layer made of the loop variable."""
    layer = "{name}" if counted is None else f"{_literal(counted.stem)}{{i}}"

    def path(match: re.Match[str]) -> str:
        return "name" if counted is None and not match[1] else f'f"{layer}{_literal(match[1])}"'

    return re.sub(rf'"{LAYER_MARK}({TEXT})"', path, line)


def _literal(text: str) -> str:
    """The text with the braces of an f-string escaped."""
    return text.replace("{", "{{").replace("}", "}}")


def _packed(words: Sequence[str]) -> Iterator[str]:
    """The words in indented lines that do not exceed the limit."""
    row = "   "
    for word in words:
        if len(row) + len(word) > MAX_LINE_LENGTH and row.strip():
            yield row
            row = "   "
        row += f" {word}"
    yield row
