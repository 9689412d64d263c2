"""Markdown as text for the terminal: the page of a rule, as `leadline explain` shows it."""

from __future__ import annotations

from io import StringIO
from typing import Literal

from rich.console import Console
from rich.markdown import Markdown
from rich.theme import Theme

from leadline.report.formula import readable
from leadline.report.layout import ACCENT
from leadline.report.look import Look

COMFORTABLE = 96  # cells a line of prose, at most
THEME = Theme({"markdown.code": ACCENT, "markdown.h1": "bold", "markdown.h2": "bold"})


def markdown(source: str, look: Look) -> str:
    """`source` set for reading; with colour, with ANSI codes."""
    page = StringIO()
    color: Literal["standard"] | None = "standard" if look.color else None
    width = min(look.width, COMFORTABLE)
    console = Console(file=page, width=width, color_system=color, force_terminal=look.color, theme=THEME)
    console.print(Markdown(readable(source)))
    return "".join(f"{line.rstrip()}\n" for line in page.getvalue().splitlines())
