"""The page itself: the charts and styles of the static report, and scripts of its own that follow the stream."""

from __future__ import annotations

from pathlib import Path

from leadline import __version__
from leadline.live.shelf import Shelf
from leadline.report.html.page import CHARTS, REPORT, STYLES, Kit, fill
from leadline.report.text import clean

HERE = Path(__file__).parent
STATIC = HERE / "static"
LIVE = Kit(
    scripts=(*CHARTS, STATIC / "heat.js", STATIC / "memory.js", STATIC / "notes.js", STATIC / "live.js"),
    styles=(*STYLES, STATIC / "live.css"),
    templates=(HERE / "templates", *REPORT.templates),
    rules=("connect-src 'self'",),
)


def page(shelf: Shelf) -> str:
    """Everything but the numbers, which come by the stream."""
    names = [clean(book.path.name) for book in shelf.books]
    return fill("live.html", names, kit=LIVE, title=f"Leadline: {', '.join(names)}", version=__version__)
