"""The runs of one live page; a file that is replaced is reopened, and one that disappears is waited for."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from leadline.errors import InputError, LeadlineError
from leadline.monitor.live.messages import Message, full_message, update_message
from leadline.monitor.runfile.read import Run
from leadline.text import clean

# Derived: the number of line styles in charts.js (TONES) without that of theory.
MAX_RUNS = 6
# Heuristic: entries per update; 2000 vectors of 1000 layers have 8 MB, and a thinned full message has less.
MAX_UPDATE_ENTRIES = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class PageCursor:
    """How much of a run a page has received."""

    cursor: int | None = None
    state: str = ""
    axes: dict[str, int] = field(default_factory=dict)
    trouble: str = ""


class LiveRun:
    """One run file, reopened when another file replaces it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._run, self._file = Run(path), _identity(path)

    def read(self) -> Run:
        with self._lock:
            now = _identity(self.path)
            if now not in (None, self._file):
                reopened = Run(self.path)
                self._run.close()
                self._run, self._file = reopened, now
            return self._run

    def update(self, known: PageCursor) -> tuple[Message | None, PageCursor]:
        """Return what the page does not know yet, None if nothing, and its new cursor. An unreadable file is news."""
        try:
            return self._update(self.read(), known)
        except LeadlineError as error:
            trouble = clean(" ".join(str(error).split()))
            after = PageCursor(cursor=known.cursor, trouble=trouble)
            return (None if trouble == known.trouble else {"trouble": trouble}), after

    def _update(self, run: Run, known: PageCursor) -> tuple[Message | None, PageCursor]:
        cursor, state = run.cursor, run.state
        if (cursor, state) == (known.cursor, known.state):
            return None, known
        axes = {name: len(labels) for name, labels in run.axes.items()}
        after = PageCursor(cursor=cursor, state=state, axes=axes)
        if known.cursor is None or not 0 <= cursor - known.cursor <= MAX_UPDATE_ENTRIES:
            return full_message(run), after
        changes = run.since(known.cursor)
        if any(event.kind == "resume" for event in changes.events):  # steps may have been written again
            return full_message(run), after
        after = PageCursor(cursor=changes.cursor, state=state, axes=axes)
        return update_message(run, changes, axes_are_known=known.axes == axes), after

    def close(self) -> None:
        self._run.close()


class RunList:
    """The runs of a page, in order."""

    def __init__(self, paths: Sequence[Path]) -> None:
        if not 1 <= len(paths) <= MAX_RUNS:
            raise InputError(
                expected=f"1 to {MAX_RUNS} run files",
                got=str(len(paths)),
                fix="name the runs you want to see side by side; `leadline runs` lists them",
            )
        self.runs = [LiveRun(path) for path in paths]
        names = "\n".join(f"{run.path.absolute()} {run.read().info.id}" for run in self.runs)
        self._fingerprint = hashlib.sha256(names.encode()).hexdigest()[:12]

    def token(self, cursors: Sequence[PageCursor]) -> str:
        """Return the cursors as a string that a browser sends when it reconnects, also to another process."""
        return ".".join(
            [self._fingerprint, *("" if each.cursor is None else str(each.cursor) for each in cursors)]
        )

    def cursors(self, token: str) -> list[PageCursor]:
        """Return the cursors of a token; a token of other runs, or a forged one, gives empty cursors."""
        fingerprint, *cursors = token.split(".")
        if fingerprint != self._fingerprint or len(cursors) != len(self.runs):
            return [PageCursor() for _ in self.runs]
        return [PageCursor(cursor=int(each) if _is_cursor(each) else None) for each in cursors]

    def close(self) -> None:
        for run in self.runs:
            run.close()


def _is_cursor(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 19  # SQLite's integers have up to 19 digits


def _identity(path: Path) -> tuple[int, int] | None:
    """Return device and inode; None while there is no file, when the open one is read on."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino
