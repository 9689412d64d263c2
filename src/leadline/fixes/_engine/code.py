"""Generated code made short: what is done alike to one layer after another becomes a loop."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

ROW = 99  # characters of a line of generated code
TEXT = r'(?:[^"\\\n]|\\.)*'
"""What may stand between double quotes."""
NUMBER = re.compile(rf'"{TEXT}"|\'(?:[^\'\\\n]|\\.)*\'|\b\d+(?:\.\d+)?(?:e[+-]?\d+)?\b')
"""A number; strings are matched to be passed over, and digits inside a name do not count."""
LAYER = re.compile(r"(?:.*?\.)??\d+(?=\.|$)")
"""The beginning of a path up to its first number: the layer that it belongs to."""
COUNTED = re.compile(r".*?\d(?=\.|$)")
"""The same for paths without such a number: up to the first name that ends in one."""
HERE = "\0"


class Block(NamedTuple):
    """The lines of code for one layer."""

    layer: str
    """Its path; "" for what belongs to no layer."""
    lines: tuple[str, ...]


class Numbered(NamedTuple):
    """Paths that differ in a last number alone, and that number as a range."""

    stem: str
    numbers: range


def layer_of(path: str) -> str:
    """The layer of a stack that a module or parameter belongs to; the path itself if there is no number in it."""
    found = LAYER.match(path) or COUNTED.match(path)
    return found[0] if found else path


def looped(blocks: Sequence[Block]) -> Iterator[str]:
    """The lines of all blocks in their order.

    Neighbours with the same lines but for the layer's path become a loop over the layers; those that differ in some
    numbers as well become a loop over layers and numbers.
    """
    runs = [list(run) for _, run in groupby(blocks, key=_form)]
    for _, alike in groupby(runs, key=lambda run: (len(run) > 1, _shape(run))):
        members = [block for run in alike for block in run]
        if len(members) == 1 or not members[0].layer:
            yield from (line for block in members for line in block.lines)
        else:
            yield from _loop(members)


def _form(block: Block) -> tuple[str, ...]:
    """The lines with the layer's path left out."""
    if not block.layer:
        return block.lines
    here = re.compile(rf'"{re.escape(block.layer)}(?=[."])')
    return tuple(here.sub(f'"{HERE}', line) for line in block.lines)


def _shape(run: Sequence[Block]) -> tuple[str, ...]:
    """What blocks have to agree in to be looped over: for a single one all but its numbers."""
    form = _form(run[0])
    return form if len(run) > 1 else tuple(NUMBER.sub(_without_number, line) for line in form)


def _without_number(found: re.Match[str]) -> str:
    return found[0] if found[0].startswith(('"', "'")) else "0"


def _loop(members: Sequence[Block]) -> Iterator[str]:
    """Places that always hold the same numbers share one variable."""
    form, columns = "\n".join(_form(members[0])), _columns(members)
    distinct = list(dict.fromkeys(columns.values()))
    names = {column: f"number_{i + 1}" if i else "number" for i, column in enumerate(distinct)}
    layers = [block.layer for block in members]
    counted = numbered(layers)
    yield from _header(layers, counted, distinct, list(names.values()))
    for line in _with_variables(form, columns, names).split("\n"):
        yield f"    {_with_layer(line, counted)}"


def _columns(members: Sequence[Block]) -> dict[int, tuple[str, ...]]:
    """By place, the numbers of all blocks that are not the same in each."""
    rows = [NUMBER.findall("\n".join(_form(block))) for block in members]
    return {place: column for place, column in enumerate(zip(*rows, strict=True)) if len(set(column)) > 1}


def numbered(layers: Sequence[str]) -> Numbered | None:
    """The layers as a range, if they are one stem with equally spaced, rising numbers."""
    found = [re.fullmatch(r"(.*?)(\d+)", layer) for layer in layers]
    parts = [(each[1], int(each[2])) for each in found if each and each[2] == str(int(each[2]))]
    if len(parts) < len(layers) or len({stem for stem, _ in parts}) > 1:
        return None
    first, last = parts[0][1], parts[-1][1]
    step = parts[1][1] - first
    numbers = range(first, last + 1, step) if step > 0 else range(0)
    return Numbered(parts[0][0], numbers) if list(numbers) == [number for _, number in parts] else None


def _header(
    layers: Sequence[str], counted: Numbered | None, columns: list[tuple[str, ...]], names: list[str]
) -> Iterator[str]:
    """The `for` line, or lines, that give a layer and its numbers their names."""
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
    """A literal of rows: in one line if there is room, else in as many as it takes."""
    words = [f"({', '.join(row)})," if len(row) > 1 else f"{row[0]}," for row in rows]
    line = f"{head}{' '.join(words)[:-1]}{tail}"
    if len(line) <= ROW:
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

    def variable(found: re.Match[str]) -> str:
        column = columns.get(next(places))
        return found[0] if column is None else names[column]

    return NUMBER.sub(variable, form)


def _with_layer(line: str, counted: Numbered | None) -> str:
    """The path of the layer put together from the loop's variable."""
    layer = "{name}" if counted is None else f"{_literal(counted.stem)}{{i}}"

    def path(found: re.Match[str]) -> str:
        return "name" if counted is None and not found[1] else f'f"{layer}{_literal(found[1])}"'

    return re.sub(rf'"{HERE}({TEXT})"', path, line)


def _literal(text: str) -> str:
    """Text as it stands in an f-string."""
    return text.replace("{", "{{").replace("}", "}}")


def _packed(words: Sequence[str]) -> Iterator[str]:
    """Words in indented lines, none of which is broken."""
    row = "   "
    for word in words:
        if len(row) + len(word) > ROW and row.strip():
            yield row
            row = "   "
        row += f" {word}"
    yield row
