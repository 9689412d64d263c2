"""Where the user's own classes and functions are written, in the words of a repository."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from leadline.records import Source

INSTALLED = {"site-packages", "dist-packages"}


def repository_root() -> Path:
    """The folder that file names start from: the repository around the working directory, or that directory."""
    here = Path.cwd()
    return next((folder for folder in (here, *here.parents) if (folder / ".git").exists()), here)


def find_source(thing: Callable[..., Any] | ModuleType, root: Path) -> Source | None:
    """The file and line of a class, function or module; None if it is not written in a file below `root`.

    What is installed is not the user's to change, also if the environment lies inside the repository.
    """
    try:
        found = inspect.getsourcefile(thing)
    except TypeError:  # built in, or typed into a prompt
        return None
    path = Path(found).resolve() if found else root
    if not path.is_relative_to(root) or not path.is_file() or INSTALLED & {*path.parts}:
        return None
    return Source(file=path.relative_to(root).as_posix(), line=_line(thing))


def _line(thing: Callable[..., Any] | ModuleType) -> int:
    try:
        return inspect.findsource(thing)[1] + 1
    except (OSError, TypeError, SyntaxError, ValueError):  # made by exec, or the file has changed since
        return 1
