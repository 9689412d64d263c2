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

from leadline.report.layout import FailOn, Look
from leadline.text import clean_lines

HERE = str(Path(__file__).parents[1])


def look_for(
    *, quiet: bool = False, verbose: bool = False, no_color: bool = False, fail_on: FailOn = "warning"
) -> Look:
    if quiet and verbose:
        raise click.UsageError("--quiet and --verbose exclude each other")
    plain = no_color or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return Look(
        width=shutil.get_terminal_size().columns,
        detail="verdict" if quiet else "everything" if verbose else "page",
        color=sys.stdout.isatty() and not plain,
        fail_on=fail_on,
    )


@contextmanager
def at_work(*, quiet: bool) -> Iterator[None]:
    """A spinner on stderr, if someone is there to see it."""
    if quiet or not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    with Console(stderr=True).status("tracing one forward and backward pass"):
        yield


def emit(text: str, output: Path | None = None) -> None:
    """Write a result. A reader that has gone away (`| head`) is no error."""
    if output is not None:
        try:
            output.write_text(text, encoding="utf-8")
        except OSError as error:
            raise click.FileError(str(output), error.strerror or str(error)) from None
        return
    try:
        click.echo(text, nl=False, color=True)
        sys.stdout.flush()
    except BrokenPipeError:  # what is left goes nowhere, so that the flush at exit is silent too
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def say(text: str) -> None:
    click.echo(text, err=True)


def explain_crash(error: Exception) -> str:
    """The traceback from the first frame that is not ours, which is where the reader's own code begins."""
    trace = error.__traceback__
    while trace is not None and _is_ours(trace):
        trace = trace.tb_next
    if trace is None and not isinstance(error, SyntaxError):
        ours = clean_lines("".join(traceback.format_exception(error)))
        return f"{ours}\n\nerror: this is a bug in leadline; please report it with the lines above"
    theirs = clean_lines("".join(traceback.format_exception(error.with_traceback(trace))))
    return (
        f"{theirs}\n\nerror: the target raised {type(error).__name__} (above), so there is nothing to report"
    )


def _is_ours(trace: TracebackType) -> bool:
    return trace.tb_frame.f_code.co_filename.startswith((HERE, "<frozen importlib"))
