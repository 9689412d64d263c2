"""How every command prints: results to stdout, everything else to stderr."""

from __future__ import annotations

import os
import shutil
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

import click

from leadline.errors import advice_on
from leadline.records import FailOn, RateScan
from leadline.records.report import Report
from leadline.report.look import Look
from leadline.text import clean_lines
from leadline.tracer.sources import INSTALLED_FOLDERS, is_user_file, show_frame, user_frames

# Heuristic: enough to follow a call through one's own code; a recursion shows its innermost frames.
MAX_SHOWN_FRAMES = 6

# Heuristic: a message of torch that is longer repeats itself or lists its own source files.
MAX_ERROR_LINES = 8

LIBRARIES_IN_BETWEEN = {"torch", "torchgen", "click"}
"""Libraries through which Leadline calls the user's code; their frames do not say where the mistake is."""


def look_for(
    *,
    quiet: bool = False,
    verbose: bool = False,
    no_color: bool = False,
    fail_on: FailOn = "warning",
    stream: TextIO | None = None,
) -> Look:
    """How to show a result on a stream, which is stdout unless another is given."""
    if quiet and verbose:
        raise click.UsageError("--quiet and --verbose exclude each other: use one of them")
    plain = no_color or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return Look(
        width=shutil.get_terminal_size().columns,
        detail="verdict" if quiet else "everything" if verbose else "page",
        color=(stream or sys.stdout).isatty() and not plain,
        fail_on=fail_on,
    )


@contextmanager
def at_work(*, quiet: bool) -> Iterator[None]:
    """Show a spinner and the time so far on stderr, if it is a terminal."""
    if quiet or not sys.stderr.isatty():
        yield
        return
    # Imported here because only a terminal needs rich.
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as shown:
        shown.add_task("measuring one step of training", total=None)
        yield


def emit(text: str, output: Path | None = None) -> None:
    """Write a result to `output` or stdout; a closed pipe (`| head`) is not an error."""
    if output is not None:
        try:
            output.write_text(text, encoding="utf-8")
        except OSError as error:
            raise click.FileError(str(output), error.strerror or str(error)) from None
        return
    try:
        click.echo(text, nl=False, color=True)
        sys.stdout.flush()
    except BrokenPipeError:  # discard the rest, so that the flush at exit is silent too
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def emit_pictures(record: Report | RateScan, svg: Path | None, png: Path | None) -> None:
    """Write the one picture of a record to the files that were asked for."""
    for path, write in ((svg, record.to_svg), (png, record.to_png)):
        if path is not None:
            try:
                write(path)
            except OSError as error:
                raise click.FileError(str(path), error.strerror or str(error)) from None


def say(text: str) -> None:
    click.echo(text, err=True)


def explain_crash(error: Exception) -> str:
    """The user's own frames, the error and what Leadline knows about it; for a bug of Leadline, the whole traceback."""
    others = [each for each in traceback.extract_tb(error.__traceback__) if _is_other_library(each.filename)]
    frames = user_frames(error) or others[-1:]
    advice = advice_on(error)
    if not frames and not advice and not _is_syntax_error(error):
        own = "".join(traceback.format_exception(error))
        return clean_lines(f"{own}\nerror: this is a bug in leadline; please report it with the lines above")
    shown = [*(show_frame(frame) for frame in frames[-MAX_SHOWN_FRAMES:]), *_error_lines(error)]
    where = advice[0] if advice else "the target raised this error\n     fix: change the line above"
    return clean_lines("\n".join([*shown, "", f"error: {where}"]))


def _is_other_library(file: str) -> bool:
    path = Path(file)
    return bool(INSTALLED_FOLDERS & {*path.parts}) and not LIBRARIES_IN_BETWEEN & {*path.parts}


def _error_lines(error: BaseException) -> list[str]:
    """The error as Python prints it, without Leadline's advice, cut to a few lines, and what it was raised from."""
    bare = traceback.TracebackException(type(error), error, None)
    advice = {line.strip() for note in advice_on(error) for line in f"leadline: {note}".splitlines()}
    lines = "".join(bare.format_exception_only()).rstrip().splitlines()
    kept = [line for line in lines if line.strip() not in advice]
    if len(kept) > MAX_ERROR_LINES:
        kept[MAX_ERROR_LINES:] = [f"... {len(kept) - MAX_ERROR_LINES} more lines"]
    cause = error.__cause__
    return kept if cause is None else [*kept, f"raised from {type(cause).__name__}: {cause}"]


def _is_syntax_error(error: Exception) -> bool:
    return isinstance(error, SyntaxError) and is_user_file(error.filename or "")
