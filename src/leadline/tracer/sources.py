"""Where the user's own classes and functions are written: file and line within the repository."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from leadline.records import Source

INSTALLED_FOLDERS = {"site-packages", "dist-packages"}


def repository_root() -> Path:
    """Return the root of the repository around the working directory, or the working directory itself."""
    here = Path.cwd()
    return next((folder for folder in (here, *here.parents) if (folder / ".git").exists()), here)


def find_source(thing: Callable[..., Any] | ModuleType, root: Path) -> Source | None:
    """Return file and line of a class, function or module; None if it is not in a file below `root`.

    Installed packages are left out, even if their environment lies inside the repository: the user does not edit them.
    """
    try:
        file = inspect.getsourcefile(thing)
    except TypeError:  # built in, or typed into a prompt
        return None
    path = Path(file).resolve() if file else root
    if not path.is_relative_to(root) or not path.is_file() or INSTALLED_FOLDERS & {*path.parts}:
        return None
    return Source(file=path.relative_to(root).as_posix(), line=_line(thing))


def _line(thing: Callable[..., Any] | ModuleType) -> int:
    try:
        return inspect.findsource(thing)[1] + 1
    except (OSError, TypeError, SyntaxError, ValueError):  # made by exec, or the file has changed since
        return 1
