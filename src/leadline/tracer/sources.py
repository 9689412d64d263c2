"""Where the user's own classes and functions are written: file and line within the repository."""

from __future__ import annotations

import inspect
import sys
import sysconfig
import weakref
from collections.abc import Callable
from functools import cache, lru_cache
from pathlib import Path
from traceback import FrameSummary, extract_tb
from types import CodeType, FrameType, ModuleType
from typing import Any

from leadline.records import Source

INSTALLED_FOLDERS = {"site-packages", "dist-packages"}
OWN_FOLDER = Path(__file__).resolve().parents[1]
_STANDARD_LIBRARY = Path(sysconfig.get_path("stdlib"))


def repository_root() -> Path:
    """Return the root of the repository around the working directory, or the working directory itself."""
    here = Path.cwd()
    return next((folder for folder in (here, *here.parents) if (folder / ".git").exists()), here)


def is_user_file(file: str) -> bool:
    """Whether a file is the user's own: neither Leadline's, nor installed, nor part of Python."""
    path = Path(file)
    if not file or file.startswith("<") or INSTALLED_FOLDERS & {*path.parts}:
        return False
    return not (path.is_relative_to(OWN_FOLDER) or path.is_relative_to(_STANDARD_LIBRARY))


def short_path(file: str) -> str:
    """The path relative to the working directory, if the file lies below it."""
    path, here = Path(file), Path.cwd()
    return path.relative_to(here).as_posix() if path.is_relative_to(here) else str(path)


def user_frames(error: BaseException) -> list[FrameSummary]:
    """The frames of an error's traceback that are in the user's files, outermost first."""
    return [frame for frame in extract_tb(error.__traceback__) if is_user_file(frame.filename)]


def show_frame(frame: FrameSummary) -> str:
    return f"{short_path(frame.filename)}:{frame.lineno} in {frame.name}\n    {frame.line}"


def find_source(thing: Callable[..., Any] | ModuleType, root: Path) -> Source | None:
    """Return file and line of a class, function or module; None if it is not in a file below `root`.

    Installed packages are left out, even if their environment lies inside the repository: the user does not edit them.
    """
    try:
        file = inspect.getsourcefile(thing)
    except (TypeError, OSError):  # built in, or typed into a prompt
        return None
    path = _own_path(file, root) if file else None
    return None if path is None else Source(file=path, line=_line(thing))


class CallSites:
    """Finds the line of the user's code that is making a call right now."""

    def __init__(self, root: Path, boundary: frozenset[CodeType]) -> None:
        """Frames outside `boundary`, the functions of Leadline that call the model, are not the model's."""
        self._root = root
        self._boundary = {id(code): code for code in boundary}
        # By the id of a code object, because its hash is computed from its bytecode each time it is asked for.
        self._paths: dict[int, tuple[CodeType, str | None]] = {}
        """The code object, which keeps its id taken, and its file; None if the user does not edit that file."""
        self._sources: dict[tuple[str, int], Source] = {}

    def here(self) -> Source | None:
        """Return the innermost line below the root that is on the stack; None if there is none."""
        return self.find(sys._getframe(1), None, None)

    def find(
        self, frame: FrameType | None, outer: FrameType | None, outer_source: Source | None
    ) -> Source | None:
        """Return the innermost line below the root, from `frame` outward.

        From the frame `outer` on, which is on the stack, the search is known to end at `outer_source`.
        """
        paths, boundary = self._paths, self._boundary
        while frame is not None:
            if frame is outer:
                return outer_source
            code = frame.f_code
            known = paths.get(id(code))
            if known is None:
                if id(code) in boundary:
                    return None
                known = paths[id(code)] = (code, _own_path(code.co_filename, self._root))
            path = known[1]
            if path is not None:
                return self._source(path, frame.f_lineno)
            frame = frame.f_back
        return None

    def _source(self, file: str, line: int) -> Source:
        source = self._sources.get((file, line))
        if source is None:
            source = self._sources[file, line] = Source(file=file, line=line)
        return source


@lru_cache(maxsize=4096)  # it asks the file system, and each pass asks for the same files
def _own_path(file: str, root: Path) -> str | None:
    """Return the path of a file from the root; None if it is no file below it, installed, or one of Leadline's own."""
    path = Path(file).resolve()
    if not path.is_relative_to(root) or not path.is_file() or INSTALLED_FOLDERS & {*path.parts}:
        return None
    return None if path.is_relative_to(OWN_FOLDER) else path.relative_to(root).as_posix()


def _line(thing: Callable[..., Any] | ModuleType) -> int:
    """Return the line at which a class, function or module begins. Python parses the whole file to find a class."""
    if thing not in _LINES:
        _LINES[thing] = _find_line(thing)
    return _LINES[thing]


_LINES: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()


def _find_line(thing: Callable[..., Any] | ModuleType) -> int:
    try:
        return inspect.findsource(thing)[1] + 1
    except (OSError, TypeError, SyntaxError, ValueError):  # made by exec, or the file has changed since
        return 1


# Packages whose functions and classes hold no state of a model: torch, what it is built on, and the standard library.
OWN_PACKAGES = frozenset({"torch", "numpy", "leadline"}) | sys.stdlib_module_names


def top_package(module: str | None) -> str:
    """Return the first part of a module's name."""
    return (module or "").partition(".")[0]


@cache
def is_installed(module: str | None) -> bool:
    """Whether a module is the standard library's or an installed package, and not a file of the user."""
    file = getattr(sys.modules.get(module or ""), "__file__", None) or ""
    return top_package(module) in OWN_PACKAGES or bool(INSTALLED_FOLDERS & {*Path(file).parts})
