"""Options that several commands share, and the progress bar."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import click
from msgspec.structs import asdict

from leadline.config import find_config, read_config
from leadline.records import SEVERITIES
from leadline.report.formats import FORMATS
from leadline.text import clean

Command = TypeVar("Command", bound=Callable[..., Any])
SQLITE = b"SQLite format 3\0"  # what every run file begins with


def examples(*commands: str) -> str:
    """The epilog of a help page; `\\b` keeps click from joining the lines."""
    return "\n".join(["\b", "Examples:", *(f"  {command}" for command in commands)])


def fail_option(command: Command) -> Command:
    choice = click.Choice([*reversed(SEVERITIES), "never"])
    text = "The least severity that makes the exit code 1."
    return click.option("--fail-on", type=choice, default="warning", show_default=True, help=text)(command)


def _split(_: click.Context, __: click.Parameter, given: Sequence[str]) -> tuple[str, ...]:
    """`--select F,B --select N701` as three entries."""
    return tuple(entry for each in given for entry in each.split(",") if entry.strip())


def _entries_option(name: str, text: str) -> Callable[[Command], Command]:
    return click.option(name, multiple=True, callback=_split, metavar="RULES", help=text)


def rule_options(command: Command) -> Command:
    """Which rules count."""
    select = "Count these rules only: names, codes or beginnings of codes, with commas between them."
    ignore = "Do not count these. Where both match, the more exact entry wins."
    return _entries_option("--select", select)(_entries_option("--ignore", ignore)(command))


def _read_settings(context: click.Context, _: click.Parameter, path: Path | None) -> None:
    """What [tool.leadline] says becomes the default of each option."""
    found = path or find_config(Path.cwd())
    if found is not None:
        settings = asdict(read_config(found))
        context.default_map = {**settings, "form": settings["format"]}


def config_option(command: Command) -> Command:
    text = "Read [tool.leadline] from this file, not from the nearest pyproject.toml that has it."
    kind = click.Path(dir_okay=False, exists=True, path_type=Path)
    return click.option(
        "--config", type=kind, is_eager=True, expose_value=False, callback=_read_settings, help=text
    )(command)


def format_option(command: Command) -> Command:
    choice = click.Choice(list(FORMATS))
    text = "How the result is written; it never changes the exit code."
    return click.option("--format", "form", type=choice, default="text", show_default=True, help=text)(
        command
    )


def color_option(command: Command) -> Command:
    return click.option("--no-color", is_flag=True, help="Plain text, also in a terminal.")(command)


def detail_options(command: Command) -> Command:
    quiet = click.option("-q", "--quiet", is_flag=True, help="The verdict only, and no progress.")
    verbose = click.option("-v", "--verbose", is_flag=True, help="Every block, finding and gap.")
    return quiet(verbose(command))


def _check_target(_: click.Context, __: click.Parameter, path: Path | None) -> Path | None:
    """Refuse a file that cannot be written before the work is done, not after; and one that holds a run, for good."""
    if path is not None and not path.parent.is_dir():
        raise click.BadParameter(f"there is no folder {str(path.parent)!r}")
    if path is not None and _is_run(path):
        raise click.BadParameter(f"{str(path)!r} holds a run, which would be lost: name another file")
    return path


def _is_run(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(len(SQLITE)) == SQLITE
    except OSError:  # not there yet, or not to be read
        return False


def file_option(*names: str, text: str) -> Callable[[Command], Command]:
    """An option that names a file to be written."""
    kind = click.Path(dir_okay=False, writable=True, path_type=Path)
    return click.option(*names, type=kind, callback=_check_target, help=text)


def output_option(command: Command) -> Command:
    return file_option("-o", "--output", text="Write the result to this file instead of stdout.")(command)


def html_option(command: Command) -> Command:
    text = "Write the report also as a page for the browser, one file that needs nothing else."
    return file_option("--html", "page", text=text)(command)


# A bar on stderr for work in several pieces, if someone is there to see it.

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
    from rich.progress import Progress as ProgressBar

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with ProgressBar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(first, total=None)

        def show(done: int, total: int, text: str) -> None:
            bar.update(task, completed=done, total=total or None, description=escape(clean(text)))

        yield show
