"""A run as tables, in pieces, so that one of any length can be written out: a row a step, or a row a layer and step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from leadline.runs.reading import Run

PIECE_STEPS = 1000  # ours: with 20 numbers a step, 20,000 cells at a time
PIECE_VALUES = 100_000  # ours: of vectors, so many numbers at a time

Kind = Literal["integer", "real", "single", "word"]
Cell = int | float | str | None
Piece = list[Sequence[Cell]]
"""One sequence a column, all of the same length."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Named columns, and their content piece by piece. A cell that was not measured is None."""

    columns: dict[str, Kind]
    pieces: Iterator[Piece]


def scalar_table(run: Run) -> Table:
    """A row a step: the step, when it was written (seconds since 1970), and every number of the whole model."""
    names = run.scalar_names
    columns: dict[str, Kind] = {"step": "integer", "time": "real"}
    columns.update({_column(name): "real" for name in names})
    return Table(columns=columns, pieces=_scalar_pieces(run, names))


def layer_table(run: Run) -> Table:
    """A row a number of a vector: step, metric, axis, index on the axis, its label, value."""
    columns: dict[str, Kind] = {"step": "integer", "metric": "word", "axis": "word", "index": "integer"}
    columns.update({"layer": "word", "value": "single"})
    return Table(columns=columns, pieces=_layer_pieces(run))


def _column(name: str) -> str:
    return f"{name} (metric)" if name in ("step", "time") else name


def _scalar_pieces(run: Run, names: Sequence[str]) -> Iterator[Piece]:
    times = run.times()
    steps = [*times]
    for start in range(0, len(steps), PIECE_STEPS):
        piece = steps[start : start + PIECE_STEPS]
        columns: Piece = [piece, [times[step] for step in piece]]
        for name in names:
            found = dict(zip(*run.scalars(name, piece[0], piece[-1] + 1), strict=True))
            columns.append([found.get(step) for step in piece])
        yield columns


def _layer_pieces(run: Run) -> Iterator[Piece]:
    axes, steps = run.axes, run.steps
    for metric, axis in run.vector_axes.items():
        labels = axes.get(axis, ())
        length = max(1, PIECE_VALUES // max(1, len(labels)))
        for start in range(0, len(steps), length):
            piece = steps[start : start + length]
            yield from _vectors(run, metric, axis, labels, (piece[0], piece[-1] + 1))


def _vectors(
    run: Run, metric: str, axis: str, labels: Sequence[str], between: tuple[int, int]
) -> Iterator[Piece]:
    columns: list[list[Cell]] = [[] for _ in range(6)]
    for step, values in zip(*run.vectors(metric, *between), strict=True):
        size = len(values)
        named = [*labels[:size], *([None] * (size - len(labels)))]
        cells: list[Iterable[Cell]] = [
            [step] * size,
            [metric] * size,
            [axis] * size,
            range(size),
            named,
            values,
        ]
        for column, content in zip(columns, cells, strict=True):
            column.extend(content)
    if columns[0]:
        yield [*columns]
