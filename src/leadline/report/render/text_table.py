"""A table in the columns of a terminal: prose is wrapped, names are shortened, numbers are aligned to the right."""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len
from rich.text import Text

from leadline.report.charts.sparkline import draw_spark, stretch_of
from leadline.report.layout import ACCENT, LABEL, NUMBER, QUIET, TONES, wrapped
from leadline.report.names import shorten_name
from leadline.report.page import Cell, Column, Spark, Table
from leadline.text import clean

# Heuristic: cells of the arrow above a sparkline that hold its two words.
MIN_ARROW = 18
# Heuristic: cells between two columns of text; one is also the gap between words.
COLUMN_GAP = 2
# Heuristic: cells that a column of names keeps before optional columns are shown.
MIN_NAME = 12


def table_lines(table: Table, width: int) -> list[Text]:
    """The header, if a column has a title, and one line or more per row; a spark takes the room that is left."""
    columns, rows = _shown(table, width)
    gaps = [_gap(columns, place) for place in range(len(columns))]
    sizes = _sizes(columns, rows, width - sum(gaps))
    page = []
    if any(each.title for each in columns):
        titles = [_title(column, _cells(rows, place), sizes[place]) for place, column in enumerate(columns)]
        page = _lines(titles, sizes, gaps, style=QUIET)
    for row in rows:
        cells = [_cell(column, cell, size) for column, cell, size in zip(columns, row, sizes, strict=True)]
        page += _lines(cells, sizes, gaps)
    return page


def _shown(table: Table, width: int) -> tuple[list[Column], list[list[Cell]]]:
    """All columns, or only those that are not optional if a name would have too little room."""
    needed = sum(
        _gap(table.columns, place)
        + (MIN_NAME if column.kind == "name" else _natural(column, _cells(table.rows, place)))
        for place, column in enumerate(table.columns)
    )
    kept = [place for place, column in enumerate(table.columns) if needed <= width or not column.optional]
    return [table.columns[place] for place in kept], [[row[place] for place in kept] for row in table.rows]


def _cells(rows: Sequence[Sequence[Cell]], place: int) -> list[Cell]:
    return [row[place] for row in rows]


def _gap(columns: Sequence[Column], place: int) -> int:
    """Empty cells to the left of a column; labels and numbers have their own."""
    own = place == 0 or columns[place].kind in ("label", "number") or columns[place - 1].kind == "label"
    return 0 if own else COLUMN_GAP


def _natural(column: Column, cells: Sequence[Cell]) -> int:
    """The width at which a column shows everything in one line."""
    if column.kind == "label":
        return LABEL
    words = [column.title, *(each for each in cells if isinstance(each, str))]
    longest = max(cell_len(clean(each)) for each in words)
    return max(longest + COLUMN_GAP, NUMBER) if column.kind == "number" else longest


def _sizes(columns: Sequence[Column], rows: Sequence[Sequence[Cell]], width: int) -> list[int]:
    """Natural sizes; what is missing is taken from the widest column, and a spark gets all that is left."""
    sizes = [_natural(column, _cells(rows, place)) for place, column in enumerate(columns)]
    for place, column in enumerate(columns):
        if column.kind == "spark":
            sizes[place] = max(width - sum(sizes) + sizes[place], MIN_ARROW)
    excess = sum(sizes) - width
    if excess > 0:
        widest = sizes.index(max(sizes))
        sizes[widest] = max(sizes[widest] - excess, 1)
    return sizes


def _title(column: Column, cells: Sequence[Cell], size: int) -> list[Text]:
    if any(column.ends):
        count = max((len(each.values) for each in cells if isinstance(each, Spark)), default=0)
        return [Text(_arrow(column.ends, count, size))]
    return [Text(column.title.rjust(size) if column.kind == "number" else column.title)]


def _arrow(ends: tuple[str, str], count: int, room: int) -> str:
    """ "input ───────▶ loss", as long as the sparklines below it."""
    length = min(max(count * stretch_of(count, room), MIN_ARROW), room)
    start, end = (shorten_name(clean(each), length // 2 - 3) for each in ends)
    return f"{start} {'─' * max(length - cell_len(start) - cell_len(end) - 3, 1)}▶ {end}"


def _cell(column: Column, cell: Cell, size: int) -> list[Text]:
    if isinstance(cell, Spark):
        drawing = Text(draw_spark(cell, size), style=ACCENT)
        drawing.highlight_regex("[!∞]", TONES["error"])
        return [drawing]
    words = clean(cell)
    if column.kind == "number":
        return [Text(words.rjust(size))]
    if column.kind == "label":
        return [Text(words, style=QUIET)]
    return [Text(shorten_name(words, size))] if column.kind == "name" else wrapped(words, size)


def _lines(
    cells: Sequence[Sequence[Text]], sizes: Sequence[int], gaps: Sequence[int], style: str = ""
) -> list[Text]:
    """One row, in as many lines as its longest cell needs."""
    page = []
    for place in range(max(map(len, cells))):
        line = Text(style=style)
        for cell, size, gap in zip(cells, sizes, gaps, strict=True):
            piece = cell[place].copy() if place < len(cell) else Text()
            piece.pad_right(size - piece.cell_len)
            line.append(" " * gap)
            line.append_text(piece)
        line.rstrip()
        page.append(line)
    return page
