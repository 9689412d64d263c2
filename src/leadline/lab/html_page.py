"""An experiment as one HTML file: words, tables, pictures and typeset formulas."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

from markdown_it import MarkdownIt
from markupsafe import Markup

from leadline.report.formula import FORMULA, plain
from leadline.report.render.html import Kit, fill

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
class HtmlPage:
    """What an experiment has to say."""

    kind: str
    title: str
    sentence: str
    facts: Sequence[tuple[str, str]]
    sections: Sequence[Section]

    def write(self, path: str | PathLike[str]) -> None:
        """As a page of its own."""
        Path(path).write_text(render_html_page(self), encoding="utf-8")


def figure(title: str, svg: str, note: str = "") -> Figure:
    """`svg`: from leadline.report.charts, which has escaped what it holds."""
    return Figure(title=title, drawn=Markup(svg), note=note)


def render_html_page(sheet: HtmlPage) -> str:
    """A page of its own."""
    return fill("sheet.html", [], kit=KIT, sheet=sheet, title=sheet.title)


# Markdown with its formulas as MathML, which browsers draw by themselves; in plain signs without a converter.

_PLACE = re.compile(r"QFORMULA(\d+)Q")


def markdown_to_html(source: str, *, inline: bool = False) -> Markup:
    """`source` as HTML; `inline`: a phrase, without a paragraph around it. Nothing in it is taken for HTML."""
    formulas: list[str] = []

    def keep(found: re.Match[str]) -> str:
        formulas.append(found[1] or found[2])
        return f"QFORMULA{len(formulas) - 1}Q"  # letters only: Markdown leaves them alone

    reader = MarkdownIt("commonmark", {"html": False}).disable(["image"])
    text = FORMULA.sub(keep, source)
    made: str = reader.renderInline(text) if inline else reader.render(text)
    convert = _converter()
    return Markup(_PLACE.sub(lambda found: convert(formulas[int(found[1])]), made))


def _converter() -> Callable[[str], str]:
    try:
        from latex2mathml.converter import convert
    except ImportError:
        return lambda latex: str(Markup("<code>{}</code>").format(plain(latex)))

    def mathml(latex: str) -> str:
        return str(convert(latex))

    return mathml
