"""`leadline check`: trace one pass of a model and report what keeps it from training."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from pathlib import Path

import click

from leadline.cli.options import (
    FAILED,
    FINE,
    FOUND,
    UNDECIDED,
    color_option,
    detail_options,
    examples,
    format_option,
    output_option,
)
from leadline.cli.output import at_work, emit, explain_crash, look_for, say
from leadline.errors import LeadlineError
from leadline.report import Report
from leadline.report.formats import FORMATS
from leadline.report.verdict import SEVERITIES
from leadline.targets import load, locate, moved

TWIN = "leadline.lab.demo:residual_mlp"


@click.command(
    epilog=examples(
        "leadline check train.py:make_case",
        "leadline check my.package:make_case --format json --output report.json",
        f"leadline check {TWIN} --dtype bfloat16 -v",
    )
)
@click.argument("target")
@format_option
@output_option
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
@detail_options
@color_option
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
    look = look_for(quiet=quiet, verbose=verbose, no_color=no_color or output is not None)
    try:
        with at_work(quiet=quiet):
            report = examine(target, seed, device, dtype)
    except (LeadlineError, click.ClickException):
        raise
    except Exception as error:
        say(explain_crash(error))
        return FAILED
    emit(FORMATS[form](report, look), output)
    return exit_code(report, fail_on)


def exit_code(report: Report, fail_on: str) -> int:
    """What the shell is told; it depends on the findings and the verdict, never on the format."""
    bar = SEVERITIES.index(fail_on) if fail_on in SEVERITIES else len(SEVERITIES)
    if any(SEVERITIES.index(finding.severity) >= bar for finding in report.findings):
        return FOUND
    return UNDECIDED if report.verdict == "undecided" else FINE


def examine(target: str, seed: int, device: str | None = None, dtype: str | None = None) -> Report:
    """Load and check a target. What its code prints goes to stderr, so that stdout holds the result alone."""
    locate(target)
    import torch

    from leadline.diagnosis import check as diagnose

    with redirect_stdout(sys.stderr):
        torch.manual_seed(seed)
        case = moved(load(target), device=device, dtype=dtype)
        return diagnose(case.model, case.inputs, case.targets, case.loss, case.optimizer)
