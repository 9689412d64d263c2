"""The live page inside of a notebook: a process that serves it, and a frame that shows it."""

from __future__ import annotations

import subprocess
import sys
import weakref
from html import escape
from os import PathLike
from pathlib import Path

from leadline.errors import InputError
from leadline.monitor.runfile.read import Run

HEIGHT = 720  # CSS pixels; ours: the head and the first row of charts


class Shown:
    """A live page in a process of its own, which ends with `close()`, with this object or with the notebook."""

    def __init__(self, url: str, process: subprocess.Popen[str]) -> None:
        self.url = url
        self._end = weakref.finalize(self, _end, process)

    def close(self) -> None:
        self._end()

    def _repr_html_(self) -> str:
        style = f"width:100%;height:{HEIGHT}px;border:0"
        return f'<iframe src="{escape(self.url)}" style="{style}" title="Leadline, live"></iframe>'

    def __repr__(self) -> str:
        return f"<live page at {self.url}>"


def show(path: str | PathLike[str], *more: str | PathLike[str]) -> Shown:
    """The live page of one or several run files, as what a notebook cell shows. It is served on this machine only."""
    paths = [str(Path(each)) for each in (path, *more)]
    for each in paths:
        Run(each).close()  # says here what is wrong with it, not in another process
    command = [sys.executable, "-m", "leadline", "view", "--no-open", "--", *paths]
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    url = process.stdout.readline().strip()
    if not url:
        _, said = process.communicate()
        raise InputError(expected="a live page", got=said.strip() or "a process that ended", fix="see above")
    return Shown(url, process)


def _end(process: subprocess.Popen[str]) -> None:
    process.terminate()
    process.communicate()
