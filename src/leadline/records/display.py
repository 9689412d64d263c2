"""The only door from a record to the report package, which is imported when a record is first shown."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

if TYPE_CHECKING:
    from os import PathLike

    from rich.console import Console, ConsoleOptions, RenderResult


def _display() -> Any:
    """The module that shows records. Imported here: a job that never prints need not load rich and templates."""
    return import_module("leadline.report.display")


class NotebookCard(msgspec.Struct, frozen=True):
    """A record that a notebook shows as a card of small charts, in inline SVG without scripts."""

    def _repr_html_(self) -> str:
        return str(_display().notebook_card(self))


class Printable(NotebookCard, frozen=True):
    """A record that also prints as a page of plain text, 80 columns wide, and with colors under rich."""

    def __str__(self) -> str:
        return str(_display().text_page(self))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield from _display().rich_lines(self, options.max_width)


def write_picture(path: str | PathLike[str], record: Any, form: Literal["svg", "png"]) -> None:
    """Write the one picture of `record`."""
    Path(path).write_bytes(_display().picture(record, form))


def write_html(path: str | PathLike[str], record: Any, **extra: Any) -> None:
    """Write `record` as one self-contained page, which opens in any browser without a network."""
    Path(path).write_text(_display().html_page(record, **extra), encoding="utf-8")
