"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from leadline.report.formats import FORMATS

FINE, FOUND, FAILED, UNDECIDED, INTERRUPTED = 0, 1, 2, 3, 130

Command = TypeVar("Command", bound=Callable[..., Any])


def examples(*commands: str) -> str:
    """The epilog of a help page; `\\b` keeps click from joining the lines."""
    return "\n".join(["\b", "Examples:", *(f"  {command}" for command in commands)])


def format_option(command: Command) -> Command:
    choice = click.Choice(list(FORMATS))
    return click.option("--format", "form", type=choice, default="text", show_default=True)(command)


def color_option(command: Command) -> Command:
    return click.option("--no-color", is_flag=True, help="Plain text, also in a terminal.")(command)


def detail_options(command: Command) -> Command:
    quiet = click.option("-q", "--quiet", is_flag=True, help="The verdict only, and no progress.")
    verbose = click.option("-v", "--verbose", is_flag=True, help="Every block, finding and gap.")
    return quiet(verbose(command))


def _check_folder(_: click.Context, __: click.Parameter, path: Path | None) -> Path | None:
    """Refuse a file that cannot be written before the work is done, not after."""
    if path is not None and not path.parent.is_dir():
        raise click.BadParameter(f"there is no folder {str(path.parent)!r}")
    return path


def output_option(command: Command) -> Command:
    kind = click.Path(dir_okay=False, writable=True, path_type=Path)
    text = "Write the result to this file instead of stdout."
    return click.option("-o", "--output", type=kind, callback=_check_folder, help=text)(command)
