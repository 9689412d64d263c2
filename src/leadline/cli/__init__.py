"""The command line, and the only part that prints: results to stdout, everything else to stderr.

A command is a `click.Command` in its own file, and one row of `COMMANDS`. Its module is imported only when the command
runs, so that `leadline --help` stays fast.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import NamedTuple

import click

from leadline import __version__
from leadline.cli.exit_codes import FAILED, FINE, INTERRUPTED
from leadline.errors import LeadlineError
from leadline.text import clean, clean_lines

__all__ = ["leadline", "main"]


class _Row(NamedTuple):
    """Where a command is defined, and its line in `leadline --help`."""

    module: str
    summary: str


COMMANDS = {
    "check": _Row("leadline.cli.check", "Report what keeps a model, a config or a run from training."),
    "compare": _Row("leadline.cli.compare", "Compare two saved reports or two runs."),
    "demo": _Row("leadline.lab.commands.demo", "Check, fix and train a bundled network that does not train."),
    "doctor": _Row("leadline.cli.doctor", "Show versions, devices and threads for a bug report."),
    "explain": _Row("leadline.cli.explain", "Explain a check or a fix."),
    "export": _Row("leadline.cli.export", "Write the numbers of a run as CSV, JSON lines or Parquet."),
    "fix": _Row("leadline.cli.fix", "Find changes that make a model train, and verify each."),
    "fixes": _Row("leadline.cli.explain", "List the fixes."),
    "forecast": _Row(
        "leadline.cli.forecast", "Measure a network at several depths and tell how deep it can go."
    ),
    "lab": _Row("leadline.lab.commands.claims", "Test published claims about deep networks."),
    "lr": _Row("leadline.cli.lr", "Show the loss over learning rates, and mark the safe one."),
    "mcp": _Row("leadline.cli.mcp", "Serve check, fix, explain and run files to a coding agent (MCP)."),
    "phase": _Row("leadline.lab.commands.phase", "Train many small networks and map which of them learn."),
    "race": _Row("leadline.lab.commands.race", "Train residual schemes on real data and rank them."),
    "report": _Row("leadline.cli.report", "Show a report, repair, forecast or experiment saved as JSON."),
    "rules": _Row("leadline.cli.explain", "List the checks."),
    "run": _Row(
        "leadline.cli.run", "Run a training program unchanged, check its first step, watch the rest."
    ),
    "runs": _Row("leadline.cli.runs", "List run files: model, steps, last loss, alerts, state."),
    "view": _Row("leadline.cli.view", "Show runs in the browser, live while they are written."),
}


class LazyGroup(click.Group):
    """A group that imports the module of a command only when that command is called."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name, placeholder, rest = super().resolve_command(ctx, args)
        return name, None if placeholder is None or name is None else load_command(name), rest


def load_command(name: str) -> click.Command:
    """The command of this name, with its module imported."""
    command: click.Command = getattr(import_module(COMMANDS[name].module), name)
    return command


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code.

    A command that returns a function leaves it to be called outside of click: the user's program, whose signals and
    output are its own.
    """
    try:
        with _forgiving_output():
            result = leadline.main(arguments, prog_name="leadline", standalone_mode=False)
        return int((result() if callable(result) else result) or FINE)
    except click.ClickException as error:
        shown = io.StringIO()
        error.show(shown)
        click.echo(clean_lines(shown.getvalue()), err=True)
    except LeadlineError as error:
        for line in (line for note in getattr(error, "__notes__", ()) for line in note.splitlines()):
            click.echo(clean(line), err=True)
        click.echo("\n       ".join(map(clean, f"error: {error}".splitlines())), err=True)
    except click.Abort:
        return INTERRUPTED
    except Exception as error:
        from leadline.cli.output import explain_crash  # imports rich, which --help does not need

        click.echo(explain_crash(error), err=True)
    return FAILED


@contextmanager
def _forgiving_output() -> Iterator[None]:
    """Inside, a terminal that cannot encode a sparkline still shows the words."""
    stream = sys.stdout
    if not isinstance(stream, io.TextIOWrapper):
        yield
        return
    errors = stream.errors
    stream.reconfigure(errors="replace")
    try:
        yield
    finally:
        stream.reconfigure(errors=errors)


@click.group(
    cls=LazyGroup,
    commands={name: click.Command(name, help=row.summary) for name, row in COMMANDS.items()},
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="\b\nExamples:\n  leadline demo\n  leadline check train.py:make_case\n  leadline explain B201",
)
@click.version_option(__version__, prog_name="leadline")
def leadline() -> None:
    """Will this deep network train, how deep can it go, and why not?

    Runs one forward and backward pass of a PyTorch model and reports what is wrong and where. Nothing is sent anywhere.
    """
