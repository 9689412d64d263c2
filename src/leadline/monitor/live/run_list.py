"""The runs of one page. Reading never writes, and a file that goes away is waited for."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from leadline.errors import InputError, LeadlineError
from leadline.monitor.live.messages import Message, news, whole
from leadline.monitor.runfile.read import Run
from leadline.text import clean

MOST_RUNS = 6  # as many ways as charts have to draw a line (charts.js, TONES) beside theory
MOST_BEHIND = (
    2000  # entries; ours: 2000 vectors of 1000 layers are 8 MB, and telling everything in short is less
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """What a page was told of a run so far."""

    cursor: int | None = None
    state: str = ""
    axes: dict[str, int] = field(default_factory=dict)
    trouble: str = ""


class Book:
    """One run file, opened again when another file takes its place."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._run, self._file = Run(path), _identity(path)

    def read(self) -> Run:
        with self._lock:
            now = _identity(self.path)
            if now not in (None, self._file):
                fresh = Run(self.path)
                self._run.close()
                self._run, self._file = fresh, now
            return self._run

    def news(self, mark: Mark) -> tuple[Message | None, Mark]:
        """What is new behind the mark, None if nothing is; and the mark behind it. Trouble with the file is news."""
        try:
            return self._news(self.read(), mark)
        except LeadlineError as error:
            said = clean(" ".join(str(error).split()))
            after = Mark(cursor=mark.cursor, trouble=said)
            return (None if said == mark.trouble else {"trouble": said}), after

    def _news(self, run: Run, mark: Mark) -> tuple[Message | None, Mark]:
        cursor, state = run.cursor, run.state
        if (cursor, state) == (mark.cursor, mark.state):
            return None, mark
        axes = {name: len(labels) for name, labels in run.axes.items()}
        after = Mark(cursor=cursor, state=state, axes=axes)
        if mark.cursor is None or not 0 <= cursor - mark.cursor <= MOST_BEHIND:
            return whole(run), after
        changes = run.since(mark.cursor)
        if any(event.kind == "resume" for event in changes.events):  # steps may have been written anew
            return whole(run), after
        after = Mark(cursor=changes.cursor, state=state, axes=axes)
        return news(run, changes, axes_are_known=mark.axes == axes), after

    def close(self) -> None:
        self._run.close()


class Shelf:
    """The runs of a page, in order."""

    def __init__(self, paths: Sequence[Path]) -> None:
        if not 1 <= len(paths) <= MOST_RUNS:
            raise InputError(
                expected=f"1 to {MOST_RUNS} run files",
                got=str(len(paths)),
                fix="name the runs you want to see side by side; `leadline runs` lists them",
            )
        self.books = [Book(path) for path in paths]
        names = "\n".join(f"{book.path.absolute()} {book.read().info.id}" for book in self.books)
        self._name = hashlib.sha256(names.encode()).hexdigest()[:12]

    def token(self, marks: Sequence[Mark]) -> str:
        """The marks in a word that a browser gives back when it connects again, also to another process."""
        return ".".join([self._name, *("" if mark.cursor is None else str(mark.cursor) for mark in marks)])

    def marks(self, token: str) -> list[Mark]:
        """What a token stands for. One of other runs, or a forged one, stands for nothing seen yet."""
        name, *cursors = token.split(".")
        if name != self._name or len(cursors) != len(self.books):
            return [Mark() for _ in self.books]
        return [Mark(cursor=int(each) if _is_cursor(each) else None) for each in cursors]

    def close(self) -> None:
        for book in self.books:
            book.close()


def _is_cursor(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 19  # SQLite's integers have 19 digits


def _identity(path: Path) -> tuple[int, int] | None:
    """Which file it is; None while there is none: the one that was there is then read on."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino
