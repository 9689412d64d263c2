"""How every command prints: results to stdout, everything else to stderr."""

from __future__ import annotations

import os
import shutil
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

import click

from leadline.records import FailOn
from leadline.report.look import Look
from leadline.text import clean_lines

PACKAGE_FOLDER = str(Path(__file__).parents[1])


def look_for(
    *, quiet: bool = False, verbose: bool = False, no_color: bool = False, fail_on: FailOn = "warning"
) -> Look:
    if quiet and verbose:
        raise click.UsageError("--quiet and --verbose exclude each other: use one of them")
    plain = no_color or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return Look(
        width=shutil.get_terminal_size().columns,
        detail="verdict" if quiet else "everything" if verbose else "page",
        color=sys.stdout.isatty() and not plain,
        fail_on=fail_on,
    )


@contextmanager
def at_work(*, quiet: bool) -> Iterator[None]:
    """Show a spinner on stderr, if it is a terminal."""
    if quiet or not sys.stderr.isatty():
        yield
        return
    # Imported here because only a terminal needs rich.
    from rich.console import Console

    with Console(stderr=True).status("tracing one forward and backward pass"):
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


def say(text: str) -> None:
    click.echo(text, err=True)


def explain_crash(error: Exception) -> str:
    """The traceback from the first frame outside Leadline, where the user's code begins."""
    trace = error.__traceback__
    while trace is not None and _is_leadline(trace):
        trace = trace.tb_next
    if trace is None and not isinstance(error, SyntaxError):
        own = clean_lines("".join(traceback.format_exception(error)))
        return f"{own}\n\nerror: this is a bug in leadline; please report it with the lines above"
    user = clean_lines("".join(traceback.format_exception(error.with_traceback(trace))))
    return f"{user}\n\nerror: the target raised {type(error).__name__} (above), so there is no report; fix the target"


def _is_leadline(trace: TracebackType) -> bool:
    return trace.tb_frame.f_code.co_filename.startswith((PACKAGE_FOLDER, "<frozen importlib"))
