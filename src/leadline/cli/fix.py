"""`leadline fix`: look for edits after which a model trains, and prove them."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING

import click

from leadline.cli.diff import diff_of
from leadline.cli.options import (
    FAILED,
    FINE,
    FOUND,
    UNDECIDED,
    color_option,
    detail_options,
    examples,
    file_option,
    html_option,
    output_option,
)
from leadline.cli.output import emit, explain_crash, look_for, say
from leadline.cli.progress import Progress, progress_bar
from leadline.errors import LeadlineError
from leadline.report.mending_formats import REPAIR_FORMATS
from leadline.report.repair import RepairReport
from leadline.targets import load, locate, moved

if TYPE_CHECKING:
    from leadline.fixes.repair import Repair

DEMO = "leadline.lab.demo:deep_mlp"
BUDGET = "60s"


@click.command(
    epilog=examples(
        "leadline fix train.py:make_case",
        "leadline fix train.py:make_case --budget 5m --diff | git apply",
        "leadline fix my.package:make_case --recipe recipe.json --save repaired.safetensors",
        "leadline fix train.py:make_case --format json --output repair.json --html repair.html",
        f"leadline fix {DEMO}",
    )
)
@click.argument("target")
@click.option(
    "--budget", default=BUDGET, show_default=True, help="Time to spend, for instance 60s, 5m or 1h."
)
@click.option("--diff", is_flag=True, help="Print the change of your own code instead of the page.")
@file_option("--save", text="Write the repaired weights to this file (safetensors).")
@file_option("--recipe", text="Write the edits to this file, for leadline.apply(model, recipe).")
@click.option(
    "--format",
    "form",
    type=click.Choice(list(REPAIR_FORMATS)),
    default="text",
    show_default=True,
    help="How the result is written; it never changes the exit code.",
)
@output_option
@html_option
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
def fix(
    target: str,
    budget: str,
    diff: bool,
    save: Path | None,
    recipe: Path | None,
    form: str,
    output: Path | None,
    page: Path | None,
    seed: int,
    device: str | None,
    dtype: str | None,
    quiet: bool,
    verbose: bool,
    no_color: bool,
) -> int:
    """Look for changes after which a model trains, and prove each of them.

    TARGET is as for `leadline check`. Each fix is made on a copy, which is traced again and then trained for a short
    while beside the untreated model, with the same batches, seeds and optimiser; it is verified only if it ends lower.
    Your files are not touched: --diff prints the change, --recipe and --save write what can be replayed and loaded.

    Exit codes: 0 it trains after the fix, or needed none; 1 not repaired; 2 wrong usage or an error; 3 undecided.
    """
    look = look_for(quiet=quiet, verbose=verbose, no_color=no_color or output is not None)
    locate(target)
    try:
        with progress_bar(quiet=quiet) as progress:
            found = mend(target, budget, seed, device, dtype, progress=progress)
    except (LeadlineError, click.ClickException):
        raise
    except Exception as error:
        say(explain_crash(error))
        return FAILED
    if page is not None:
        emit(REPAIR_FORMATS["html"](found.report, look), page)
    if recipe is not None:
        emit(found.recipe.to_json() + "\n", recipe)
    if save is not None:
        _save(found, save)
    emit(diff_of(target, found.code) if diff else REPAIR_FORMATS[form](found.report, look), output)
    return exit_code(found.report)


def exit_code(report: RepairReport) -> int:
    """What the shell is told; it depends on the verdict and the last trial, never on the format."""
    if report.verdict_after == "undecided" or (report.ok and report.learns is False):
        return UNDECIDED
    return FINE if report.ok else FOUND


def mend(
    target: str,
    budget: str | None,
    seed: int,
    device: str | None = None,
    dtype: str | None = None,
    *,
    progress: Progress | None = None,
) -> Repair:
    """Load and repair a target. What its code prints goes to stderr, so that stdout holds the result alone."""
    import torch

    from leadline.fixes import all_fixes
    from leadline.fixes.repair import repair

    with redirect_stdout(sys.stderr):
        torch.manual_seed(seed)
        case = moved(load(target), device=device, dtype=dtype)
        return repair(case, budget, fixes=all_fixes(), progress=progress)


def _save(found: Repair, path: Path) -> None:
    """Every entry of the state under its own name: no pickle, and nothing shared that a loader could refuse."""
    from safetensors.torch import save_file

    state = {name: value.detach().clone().contiguous() for name, value in found.model.state_dict().items()}
    try:
        save_file(state, path, metadata={"format": "pt", "leadline.recipe": found.recipe.to_json()})
    except OSError as error:
        raise click.FileError(str(path), error.strerror or str(error)) from None
