"""Markdown with its formulas as MathML, which browsers draw by themselves; in plain signs without a converter."""

from __future__ import annotations

import re
from collections.abc import Callable

from markdown_it import MarkdownIt
from markupsafe import Markup

from leadline.report.formula import FORMULA, plain

_PLACE = re.compile(r"QFORMULA(\d+)Q")


def typeset(source: str, *, inline: bool = False) -> Markup:
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
