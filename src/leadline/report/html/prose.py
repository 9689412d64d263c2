"""Markdown as HTML: the page of a rule, as a report shows it. Nothing in it is taken for HTML."""

from __future__ import annotations

from markdown_it import MarkdownIt
from markupsafe import Markup

from leadline.report.formula import readable


def prose(source: str) -> Markup:
    """`source` with its formulas in plain signs. Headings go two levels down, below those of the page."""
    made: str = MarkdownIt("commonmark", {"html": False}).disable(["image"]).render(readable(source))
    for level in (4, 3, 2, 1):
        made = made.replace(f"<h{level}>", f"<h{level + 2}>").replace(f"</h{level}>", f"</h{level + 2}>")
    return Markup(made)
