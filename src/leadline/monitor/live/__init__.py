"""The live page: a server process that reads run files and shows them in a browser on the same machine.

`leadline view` starts it from the command line; `show` embeds it in a notebook. It needs the extra `live`.
"""

from __future__ import annotations

import subprocess
import sys
import weakref
from html import escape
from os import PathLike
from pathlib import Path

from leadline.errors import InputError
from leadline.monitor.runfile.read import Run

__all__ = ["LivePage", "show"]

# Heuristic: CSS pixels; the header and the first row of charts.
FRAME_HEIGHT = 720


class LivePage:
    """A live page in its own process, which ends with `close()`, with this object or with the notebook."""

    def __init__(self, url: str, process: subprocess.Popen[str]) -> None:
        self.url = url
        self._stop = weakref.finalize(self, _stop, process)

    def close(self) -> None:
        self._stop()

    def _repr_html_(self) -> str:
        style = f"width:100%;height:{FRAME_HEIGHT}px;border:0"
        return f'<iframe src="{escape(self.url)}" style="{style}" title="Leadline, live"></iframe>'

    def __repr__(self) -> str:
        return f"<live page at {self.url}>"


def show(path: str | PathLike[str], *more: str | PathLike[str]) -> LivePage:
    """Show the live page of one or several run files in a notebook cell. It is served on this machine only."""
    paths = [str(Path(each)) for each in (path, *more)]
    for each in paths:
        Run(each).close()  # raises here, and not in the other process, if the file is not readable
    command = [sys.executable, "-m", "leadline", "view", "--no-open", "--", *paths]
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    url = process.stdout.readline().strip()
    if not url:
        _, error = process.communicate()
        raise InputError(
            expected="a live page",
            got=error.strip() or "a process that ended",
            fix="run `leadline view` with the same files to see the error",
        )
    return LivePage(url, process)


def _stop(process: subprocess.Popen[str]) -> None:
    process.terminate()
    process.communicate()
