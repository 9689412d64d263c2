"""Options that several commands share, and the progress bar."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO, TypeVar

import click
from msgspec.structs import asdict

from leadline.config import find_config, read_config
from leadline.records import SEVERITIES
from leadline.report.look import FORMAT_NAMES
from leadline.text import clean

Command = TypeVar("Command", bound=Callable[..., Any])
# The first bytes of every run file.
SQLITE_HEADER = b"SQLite format 3\0"


def examples(*commands: str) -> str:
    """The epilog of a help page; `\\b` stops click from joining the lines."""
    return "\n".join(["\b", "Examples:", *(f"  {command}" for command in commands)])


def fail_option(command: Command) -> Command:
    choice = click.Choice([*reversed(SEVERITIES), "never"])
    text = "Exit with code 1 for findings of this severity or a higher one."
    return click.option("--fail-on", type=choice, default="warning", show_default=True, help=text)(command)


def _split(_: click.Context, __: click.Parameter, given: Sequence[str]) -> tuple[str, ...]:
    """`--select F,B --select N701` as three entries."""
    return tuple(entry for each in given for entry in each.split(",") if entry.strip())


def _entries_option(name: str, text: str) -> Callable[[Command], Command]:
    return click.option(name, multiple=True, callback=_split, metavar="RULES", help=text)


def rule_options(command: Command) -> Command:
    """Options --select and --ignore."""
    select = "Apply only these checks: names, codes or prefixes of codes, separated by commas."
    ignore = "Do not apply these checks. If --select matches too, the more exact entry wins."
    return _entries_option("--select", select)(_entries_option("--ignore", ignore)(command))


def _read_settings(context: click.Context, _: click.Parameter, path: Path | None) -> None:
    """Use the values of [tool.leadline] as the defaults of the options."""
    config = path or find_config(Path.cwd())
    if config is not None:
        settings = asdict(read_config(config))
        context.default_map = {**settings, "form": settings["format"]}


def config_option(command: Command) -> Command:
    text = "Read [tool.leadline] from this file instead of the nearest pyproject.toml."
    kind = click.Path(dir_okay=False, exists=True, path_type=Path)
    return click.option(
        "--config", type=kind, is_eager=True, expose_value=False, callback=_read_settings, help=text
    )(command)


def format_option(command: Command) -> Command:
    choice = click.Choice(FORMAT_NAMES)
    text = "Output format; it does not change the exit code."
    return click.option("--format", "form", type=choice, default="text", show_default=True, help=text)(
        command
    )


def steps_option(command: Command) -> Command:
    text = "Let a program make this many steps under a watch, and judge its loop too [default: only its first step]."
    return click.option("--steps", type=click.IntRange(min=0), default=0, metavar="N", help=text)(command)


def color_option(command: Command) -> Command:
    return click.option("--no-color", is_flag=True, help="Print without colors, also in a terminal.")(command)


def detail_options(command: Command) -> Command:
    quiet = click.option("-q", "--quiet", is_flag=True, help="Print only the verdict, without progress.")
    verbose = click.option("-v", "--verbose", is_flag=True, help="Print every block, finding and gap.")
    return quiet(verbose(command))


def _check_target(_: click.Context, __: click.Parameter, path: Path | None) -> Path | None:
    """Refuse, before the work starts, a file that cannot be written or that holds a run."""
    if path is not None and not path.parent.is_dir():
        raise click.BadParameter(f"there is no folder {str(path.parent)!r}: create it first")
    if path is not None and _is_run(path):
        raise click.BadParameter(f"{str(path)!r} holds a run, which would be lost: choose another file name")
    return path


def _is_run(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(len(SQLITE_HEADER)) == SQLITE_HEADER
    except OSError:  # it does not exist yet, or cannot be read
        return False


def file_option(*names: str, text: str) -> Callable[[Command], Command]:
    """An option that names a file to be written."""
    kind = click.Path(dir_okay=False, writable=True, path_type=Path)
    return click.option(*names, type=kind, callback=_check_target, help=text)


def output_option(command: Command) -> Command:
    return file_option("-o", "--output", text="Write the result to this file instead of stdout.")(command)


def html_option(command: Command) -> Command:
    text = "Also write the report as one self-contained HTML page."
    return file_option("--html", "page", text=text)(command)


def picture_options(command: Command) -> Command:
    svg = file_option("--svg", text="Also write one picture of the result to share, as SVG.")
    png = file_option("--png", text="The same picture as PNG; needs the extra png.")
    return svg(png(command))


# Progress on stderr: a bar in a terminal, and elsewhere a line every few seconds.

Progress = Callable[[int, int, str], object]
# Heuristic: seconds of silence before the first line; what is done sooner needs none.
MIN_SILENT_SECONDS = 2.0
# Heuristic: seconds between two lines in a log.
LINE_INTERVAL_SECONDS = 5.0


class ProgressLines:
    """Writes how far the work is, and how long the rest takes at that pace, to a stream that is not a terminal."""

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream, self._clock = stream, clock
        self._start = clock()
        self._due = self._start + MIN_SILENT_SECONDS

    def __call__(self, done: int, total: int, text: str) -> None:
        now = self._clock()
        if now < self._due:
            return
        self._due = now + LINE_INTERVAL_SECONDS
        count = f" {done}/{total}" if total else ""
        spent = now - self._start
        left = f", about {spent * (total - done) / done:.0f} s left" if 0 < done < total else ""
        click.echo(f"{clean(text)}{count} ({spent:.0f} s{left})", file=self._stream)


@contextmanager
def progress_bar(*, quiet: bool, first: str = "tracing") -> Iterator[Progress | None]:
    """A function to call with (done, total, description); total 0 means unknown. None if `quiet`.

    `first` is the description before the first call.
    """
    if quiet:
        yield None
        return
    if not sys.stderr.isatty():
        yield ProgressLines(sys.stderr)
        return
    # Imported here because most commands show no bar, and rich is slow to import.
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )
    from rich.progress import Progress as ProgressBar

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with ProgressBar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(first, total=None)

        def show(done: int, total: int, text: str) -> None:
            bar.update(task, completed=done, total=total or None, description=escape(clean(text)))

        yield show
