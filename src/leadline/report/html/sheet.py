"""An experiment on a page: words, tables and pictures under headings, in one file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

from markupsafe import Markup

from leadline.report.html.page import Kit, fill

KIT = Kit(scripts=())


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A picture and the words above it."""

    title: str
    drawn: Markup
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """`table`: its header first."""

    heading: str
    words: Sequence[str] = ()
    table: Sequence[Sequence[str]] = ()
    figures: Sequence[Figure] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Sheet:
    """What an experiment has to say."""

    kind: str
    title: str
    sentence: str
    facts: Sequence[tuple[str, str]]
    sections: Sequence[Section]

    def write(self, path: str | PathLike[str]) -> None:
        """As a page of its own."""
        Path(path).write_text(render_sheet(self), encoding="utf-8")


def figure(title: str, svg: str, note: str = "") -> Figure:
    """`svg`: from leadline.drawing, which has escaped what it holds."""
    return Figure(title=title, drawn=Markup(svg), note=note)


def render_sheet(sheet: Sheet) -> str:
    """A page of its own."""
    return fill("sheet.html", [], kit=KIT, sheet=sheet, title=sheet.title)
