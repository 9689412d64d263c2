"""The HTML page of a race or a phase diagram, and Markdown with formulas as HTML."""

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
    """A picture with its title and an optional note."""

    title: str
    drawn: Markup
    """The picture as SVG."""
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A section of the page. The first row of `table` is its header."""

    heading: str
    words: Sequence[str] = ()
    table: Sequence[Sequence[str]] = ()
    figures: Sequence[Figure] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class HtmlPage:
    """The content of the page."""

    kind: str
    title: str
    sentence: str
    facts: Sequence[tuple[str, str]]
    sections: Sequence[Section]

    def write(self, path: str | PathLike[str]) -> None:
        """Write the page to a file."""
        Path(path).write_text(render_html_page(self), encoding="utf-8")


def figure(title: str, svg: str, note: str = "") -> Figure:
    """Return a Figure. `svg` must come from leadline.report.charts, which escapes its text."""
    return Figure(title=title, drawn=Markup(svg), note=note)


def render_html_page(page: HtmlPage) -> str:
    """Return the page as one self-contained HTML file."""
    return fill("sheet.html", [], kit=KIT, sheet=page, title=page.title)


# Markdown with its formulas as MathML, which browsers draw by themselves; as plain text if latex2mathml is missing.

_PLACEHOLDER = re.compile(r"QFORMULA(\d+)Q")


def markdown_to_html(source: str, *, inline: bool = False) -> Markup:
    """Return Markdown as HTML. `inline` leaves out the paragraph tags. HTML in the source is escaped."""
    formulas: list[str] = []

    def replace_formula(match: re.Match[str]) -> str:
        formulas.append(match[1] or match[2])
        return f"QFORMULA{len(formulas) - 1}Q"  # letters only, so that Markdown does not change it

    reader = MarkdownIt("commonmark", {"html": False}).disable(["image"])
    text = FORMULA.sub(replace_formula, source)
    html: str = reader.renderInline(text) if inline else reader.render(text)
    convert = _converter()
    return Markup(_PLACEHOLDER.sub(lambda match: convert(formulas[int(match[1])]), html))


def _converter() -> Callable[[str], str]:
    try:  # an optional dependency
        from latex2mathml.converter import convert
    except ImportError:
        return lambda latex: str(Markup("<code>{}</code>").format(plain(latex)))

    def mathml(latex: str) -> str:
        return str(convert(latex))

    return mathml
