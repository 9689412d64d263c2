"""Markdown as text for the terminal: the page of a rule, as `leadline explain` shows it."""

from __future__ import annotations

from io import StringIO
from typing import Literal

from rich.console import Console
from rich.markdown import Markdown

from leadline.report.look import Look

COMFORTABLE = 96  # cells a line of prose, at most


def markdown(source: str, look: Look) -> str:
    """`source` set for reading; with colour, with ANSI codes."""
    page = StringIO()
    color: Literal["standard"] | None = "standard" if look.color else None
    width = min(look.width, COMFORTABLE)
    console = Console(file=page, width=width, color_system=color, force_terminal=look.color)
    console.print(Markdown(source))
    return "".join(f"{line.rstrip()}\n" for line in page.getvalue().splitlines())
