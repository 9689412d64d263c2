"""The command line, and the only file that prints: results to stdout, everything else to stderr."""

from __future__ import annotations

import io
import json
import os
import platform
import shutil
import sys
import textwrap
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from difflib import get_close_matches
from importlib import metadata
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO, TypeVar

import click

from leadline import __version__
from leadline.errors import InputError, LeadlineError
from leadline.report import Report
from leadline.report.formats import FORMATS
from leadline.report.look import Look
from leadline.report.markdown import markdown
from leadline.report.text import clean
from leadline.report.verdict import SEVERITIES
from leadline.rules import Rule, all_rules
from leadline.targets import load, locate, moved

FINE, FOUND, FAILED, UNDECIDED, INTERRUPTED = 0, 1, 2, 3, 130
DEMO = "leadline.lab.demo:deep_mlp"
TWIN = "leadline.lab.demo:residual_mlp"
HERE = str(Path(__file__).parent)

Command = TypeVar("Command", bound=Callable[..., Any])


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(
            errors="replace"
        )  # a terminal that cannot draw a sparkline still gets the words
    try:
        return int(leadline.main(arguments, prog_name="leadline", standalone_mode=False) or FINE)
    except click.ClickException as error:
        error.show()
    except LeadlineError as error:
        _say("\n       ".join(map(clean, f"error: {error}".splitlines())))
    except click.Abort:
        return INTERRUPTED
    except Exception as error:
        _say(_explain_crash(error))
    return FAILED


def _examples(*commands: str) -> str:
    """The epilog of a help page; `\\b` keeps click from joining the lines."""
    return "\n".join(["\b", "Examples:", *(f"  {command}" for command in commands)])


def _format_option(command: Command) -> Command:
    choice = click.Choice(list(FORMATS))
    return click.option("--format", "form", type=choice, default="text", show_default=True)(command)


def _color_option(command: Command) -> Command:
    return click.option("--no-color", is_flag=True, help="Plain text, also in a terminal.")(command)


def _detail_options(command: Command) -> Command:
    quiet = click.option("-q", "--quiet", is_flag=True, help="The verdict only, and no progress.")
    verbose = click.option("-v", "--verbose", is_flag=True, help="Every block, finding and gap.")
    return quiet(verbose(command))


def _check_folder(_: click.Context, __: click.Parameter, path: Path | None) -> Path | None:
    """Refuse a file that cannot be written before the work is done, not after."""
    if path is not None and not path.parent.is_dir():
        raise click.BadParameter(f"there is no folder {str(path.parent)!r}")
    return path


def _output_option(command: Command) -> Command:
    kind = click.Path(dir_okay=False, writable=True, path_type=Path)
    text = "Write the result to this file instead of stdout."
    return click.option("-o", "--output", type=kind, callback=_check_folder, help=text)(command)


@click.group(
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=_examples("leadline demo", "leadline check train.py:make_case", "leadline explain B201"),
)
@click.version_option(__version__, prog_name="leadline")
def leadline() -> None:
    """Will this deep network train, how deep can it go, and why not?

    Runs one forward and backward pass of a PyTorch model and says what is wrong and where. Nothing is sent anywhere.
    """


@leadline.command(
    epilog=_examples(
        "leadline check train.py:make_case",
        "leadline check my.package:make_case --format json --output report.json",
        f"leadline check {TWIN} --dtype bfloat16 -v",
    )
)
@click.argument("target")
@_format_option
@_output_option
@click.option(
    "--fail-on",
    type=click.Choice([*reversed(SEVERITIES), "never"]),
    default="warning",
    show_default=True,
    help="The least severity that makes the exit code 1.",
)
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Seeds torch before the factory runs.",
)
@click.option("--device", help="Move model and batch there, for instance cuda.")
@click.option("--dtype", help="Change floating-point tensors to this type, for instance bfloat16.")
@_detail_options
@_color_option
def check(
    target: str,
    form: str,
    output: Path | None,
    fail_on: str,
    seed: int,
    device: str | None,
    dtype: str | None,
    quiet: bool,
    verbose: bool,
    no_color: bool,
) -> int:
    """Trace one pass of a model and report what keeps it from training.

    TARGET is path/file.py:factory or package.module:factory. The factory takes no arguments and returns a
    leadline.Case, or a tuple or dict of its fields: model, inputs, targets, loss, optimizer, batches.

    Exit codes: 0 nothing at or above --fail-on, 1 findings, 2 wrong usage or an error, 3 could not decide.
    """
    look = _look(quiet=quiet, verbose=verbose, no_color=no_color or output is not None)
    try:
        with _at_work(quiet=quiet):
            report = _examine(target, seed, device, dtype)
    except (LeadlineError, click.ClickException):
        raise
    except Exception as error:
        _say(_explain_crash(error))
        return FAILED
    _emit(FORMATS[form](report, look), output)
    return exit_code(report, fail_on)


@leadline.command(epilog=_examples("leadline explain B201", "leadline explain gradient-decay"))
@click.argument("rule", metavar="CODE_OR_NAME")
@_color_option
def explain(rule: str, no_color: bool) -> int:
    """Tell what a rule measures, why it hurts, and when it is wrong."""
    found = _find_rule(rule)
    look = _look(no_color=no_color)
    _emit(markdown(f"**{found.code} {found.name}**\n\n{found.doc}", look))
    return FINE


@leadline.command(epilog=_examples("leadline rules", "leadline rules --format json"))
@_format_option
def rules(form: str) -> int:
    """List the rules: code, name and what each looks for."""
    rows = [
        {
            "code": each.code,
            "name": each.name,
            "summary": each.summary,
            "since": each.since,
            "fixes": each.fixes,
        }
        for each in all_rules()
    ]
    _emit(json.dumps(rows, indent=2) + "\n" if form == "json" else _rule_table(all_rules()))
    return FINE


@leadline.command(
    epilog=_examples(
        "leadline check train.py:make_case --format json > saved.json", "leadline report saved.json -v"
    )
)
@click.argument("saved", type=click.File("r", encoding="utf-8", errors="replace"))
@_format_option
@_output_option
@_detail_options
@_color_option
def report(saved: TextIO, form: str, output: Path | None, quiet: bool, verbose: bool, no_color: bool) -> int:
    """Show a report that was saved as JSON ("-" reads stdin). Needs no torch."""
    look = _look(quiet=quiet, verbose=verbose, no_color=no_color or output is not None)
    _emit(FORMATS[form](Report.from_json(saved.read()), look), output)
    return FINE


@leadline.command(epilog=_examples("leadline demo", "leadline demo -v"))
@_detail_options
@_color_option
def demo(quiet: bool, verbose: bool, no_color: bool) -> int:
    """Check a bundled network of 60 layers that does not train."""
    look = _look(quiet=quiet, verbose=verbose, no_color=no_color)
    if not quiet:
        _say(
            "A network of 60 ReLU layers with PyTorch's default initialisation is to tell two spirals apart."
        )
        _say(f"Running: leadline check {DEMO}\n")
    with _at_work(quiet=quiet):
        found = _examine(DEMO, seed=0)
    _emit(FORMATS["text"](found, look))
    if not quiet:
        _say(f"\nIts twin, as deep but with scaled residual branches, trains: leadline check {TWIN}")
    return FINE


@leadline.command(epilog=_examples("leadline doctor"))
def doctor() -> int:
    """Show versions, devices and threads: what a bug report should contain."""
    _emit("".join(f"{name:<10}{value}\n" for name, value in _environment()))
    return FINE


def exit_code(report: Report, fail_on: str) -> int:
    """What the shell is told; it depends on the findings and the verdict, never on the format."""
    bar = SEVERITIES.index(fail_on) if fail_on in SEVERITIES else len(SEVERITIES)
    if any(SEVERITIES.index(finding.severity) >= bar for finding in report.findings):
        return FOUND
    return UNDECIDED if report.verdict == "undecided" else FINE


def _examine(target: str, seed: int, device: str | None = None, dtype: str | None = None) -> Report:
    """Load and check a target. What its code prints goes to stderr, so that stdout holds the result alone."""
    locate(target)
    import torch

    from leadline.diagnosis import check as diagnose

    with redirect_stdout(sys.stderr):
        torch.manual_seed(seed)
        case = moved(load(target), device=device, dtype=dtype)
        return diagnose(case.model, case.inputs, case.targets, case.loss, case.optimizer)


def _look(*, quiet: bool = False, verbose: bool = False, no_color: bool = False) -> Look:
    if quiet and verbose:
        raise click.UsageError("--quiet and --verbose exclude each other")
    plain = no_color or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return Look(
        width=shutil.get_terminal_size().columns,
        detail="verdict" if quiet else "everything" if verbose else "page",
        color=sys.stdout.isatty() and not plain,
    )


@contextmanager
def _at_work(*, quiet: bool) -> Iterator[None]:
    """A spinner on stderr, if someone is there to see it."""
    if quiet or not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    with Console(stderr=True).status("tracing one forward and backward pass"):
        yield


def _emit(text: str, output: Path | None = None) -> None:
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
    except BrokenPipeError:
        os.dup2(
            os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno()
        )  # so that the flush at exit is silent too


def _say(text: str) -> None:
    click.echo(text, err=True)


def _find_rule(wanted: str) -> Rule:
    keys = {key.lower(): each for each in all_rules() for key in (each.code, each.name)}
    if wanted.lower() in keys:
        return keys[wanted.lower()]
    close = get_close_matches(wanted.lower(), keys, n=1, cutoff=0.5)
    near = keys[close[0]] if close else None
    raise InputError(
        expected="the code or name of a rule",
        got=repr(wanted),
        fix=f"did you mean {near.code} ({near.name})?" if near else "`leadline rules` lists them",
    )


def _rule_table(found: Sequence[Rule]) -> str:
    names = max((len(each.name) for each in found), default=0)
    width = max(shutil.get_terminal_size().columns, names + 30)
    rows = []
    for each in found:
        head = f"{each.code:<6}{each.name:<{names + 2}}"
        rows.append(
            textwrap.fill(each.summary, width, initial_indent=head, subsequent_indent=" " * len(head))
        )
    return "".join(f"{row}\n" for row in rows)


def _explain_crash(error: Exception) -> str:
    """The traceback from the first frame that is not ours, which is where the reader's own code begins."""
    trace = error.__traceback__
    while trace is not None and _is_ours(trace):
        trace = trace.tb_next
    if trace is None and not isinstance(error, SyntaxError):
        ours = "".join(traceback.format_exception(error))
        return f"{ours}\nerror: this is a bug in leadline; please report it with the lines above"
    theirs = "".join(traceback.format_exception(error.with_traceback(trace)))
    return f"{theirs}\nerror: the target raised {type(error).__name__} (above), so there is nothing to report"


def _is_ours(trace: TracebackType) -> bool:
    return trace.tb_frame.f_code.co_filename.startswith((HERE, "<frozen importlib"))


def _environment() -> Iterator[tuple[str, str]]:
    yield "leadline", __version__
    yield "python", f"{platform.python_version()} on {platform.platform()}"
    try:
        import torch
    except ImportError as error:
        raise click.ClickException(f"torch cannot be imported: {error}") from None
    yield "torch", torch.__version__
    for name in ("click", "rich", "msgspec"):
        yield name, metadata.version(name)
    cards = [
        f"cuda:{index} {torch.cuda.get_device_name(index)}" for index in range(torch.cuda.device_count())
    ]
    apple = ["mps"] if torch.backends.mps.is_available() else []
    yield "devices", ", ".join(["cpu", *cards, *apple])
    yield "threads", f"{torch.get_num_threads()} of {os.cpu_count()} cores"
