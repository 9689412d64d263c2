"""A bar on stderr for work in several pieces, if someone is there to see it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from leadline.report.text import clean

Progress = Callable[[int, int, str], object]


@contextmanager
def progress_bar(*, quiet: bool, first: str = "tracing") -> Iterator[Progress | None]:
    """What is called with (done, total, what is being done); a total of 0 is unknown. None if nobody looks.

    `first`: what is being done before the first call.
    """
    if quiet or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(first, total=None)

        def show(done: int, total: int, text: str) -> None:
            bar.update(task, completed=done, total=total or None, description=escape(clean(text)))

        yield show
