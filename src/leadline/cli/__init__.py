"""The command line, and the only part that prints: results to stdout, everything else to stderr.

A command is a `click.Command` in a file of this folder, and nothing else: it is found by looking.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence
from importlib import import_module

import click

from leadline import __version__
from leadline.cli.options import FAILED, FINE, INTERRUPTED, examples
from leadline.cli.output import explain_crash, say
from leadline.collect import collect
from leadline.errors import LeadlineError
from leadline.text import clean, clean_lines

__all__ = ["leadline", "main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    if isinstance(
        sys.stdout, io.TextIOWrapper
    ):  # a terminal that cannot draw a sparkline still gets the words
        sys.stdout.reconfigure(errors="replace")
    try:
        return int(leadline.main(arguments, prog_name="leadline", standalone_mode=False) or FINE)
    except click.ClickException as error:
        shown = io.StringIO()
        error.show(shown)
        say(clean_lines(shown.getvalue()))
    except LeadlineError as error:
        say("\n       ".join(map(clean, f"error: {error}".splitlines())))
    except click.Abort:
        return INTERRUPTED
    except Exception as error:
        say(explain_crash(error))
    return FAILED


@click.group(
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=examples("leadline demo", "leadline check train.py:make_case", "leadline explain B201"),
)
@click.version_option(__version__, prog_name="leadline")
def leadline() -> None:
    """Will this deep network train, how deep can it go, and why not?

    Runs one forward and backward pass of a PyTorch model and says what is wrong and where. Nothing is sent anywhere.
    """


COMMAND_PACKAGES = ("leadline.cli", "leadline.lab.commands")


def _commands() -> list[click.Command]:
    """Every command of the command packages that is not a member of a group, such as `leadline lab run`."""
    found = [each for name in COMMAND_PACKAGES for each in collect(import_module(name), click.Command)]
    members = {
        id(each) for group in found if isinstance(group, click.Group) for each in group.commands.values()
    }
    return [each for each in found if id(each) not in members]


for command in _commands():
    leadline.add_command(command)
