"""`leadline forecast`: measures a network at several depths, widths or batch sizes and forecasts larger ones."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING

import click

from leadline.cli.exit_codes import FAILED, FINE
from leadline.cli.options import (
    Progress,
    color_option,
    detail_options,
    examples,
    html_option,
    output_option,
    progress_bar,
)
from leadline.cli.output import emit, explain_crash, look_for, say
from leadline.errors import LeadlineError
from leadline.targets import load_family, locate, show_target

if TYPE_CHECKING:
    from leadline.records import Forecast

DEMO = "leadline.lab.demo:residual_family"


class WholeNumbers(click.ParamType[tuple[int, ...]]):
    """A list of whole numbers such as `4,8,16,32`."""

    name = "numbers"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, ...]:
        try:
            return tuple(int(each) for each in str(value).split(","))
        except ValueError:
            self.fail(f"{value!r} is not a list of whole numbers such as 4,8,16,32", param, ctx)


@click.command(
    epilog=examples(
        "leadline forecast train.py:build --depths 4,8,16,32 --seeds 3",
        "leadline forecast train.py:build --widths 32,64,128 --batches 8,16,32 --steps 20000",
        "leadline forecast my.package:build --format json --output forecast.json",
        f"leadline forecast {DEMO} --html forecast.html",
    )
)
@click.argument("target")
@click.option(
    "--depths",
    type=WholeNumbers(),
    help="Increasing depths, separated by commas.  [default: 4,8,16,32 without --widths and --batches]",
)
@click.option("--widths", type=WholeNumbers(), help="Increasing widths, if the function takes `width`.")
@click.option("--batches", type=WholeNumbers(), help="Increasing batch sizes, if the function takes `batch`.")
@click.option(
    "--steps",
    type=click.IntRange(min=1),
    help="Planned optimizer steps of the run, to compare with weight decay's memory.",
)
@click.option(
    "--seeds",
    type=click.IntRange(min=1),
    default=3,
    show_default=True,
    help="Number of networks at each depth, width or batch size.",
)
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True)
@output_option
@html_option
@detail_options
@color_option
def forecast(
    target: str,
    depths: tuple[int, ...] | None,
    widths: tuple[int, ...] | None,
    batches: tuple[int, ...] | None,
    steps: int | None,
    seeds: int,
    form: str,
    output: Path | None,
    page: Path | None,
    quiet: bool,
    verbose: bool,
    no_color: bool,
) -> int:
    """Build a network at several depths, widths or batch sizes: how deep it can go, and which rate a larger one needs.

    TARGET is path/file.py:build or package.module:build. The function takes depth, width and batch, or some of them (a
    single argument of any name is the depth), and returns a leadline.Case, or a tuple or dict of its fields: model,
    inputs, targets, loss and optimizer (required here). While one of them varies, the others have their first value. A
    function without arguments is one network: the forecast then extrapolates to more of its blocks.

    Exit codes: 0 done, 2 wrong usage or an error.
    """
    look = look_for(quiet=quiet, verbose=verbose, no_color=no_color or output is not None)
    try:
        with progress_bar(quiet=quiet) as progress:
            record = _measure(
                target, {"depths": depths, "widths": widths, "batches": batches}, steps, seeds, progress
            )
    except (LeadlineError, click.ClickException):
        raise
    except Exception as error:
        say(explain_crash(error))
        return FAILED
    # Imported here because only a finished forecast needs templates.
    from leadline.report.formats import FORECAST_FORMATS

    if page is not None:
        emit(FORECAST_FORMATS["html"](record, look), page)
    emit(FORECAST_FORMATS[form](record, look), output)
    return FINE


def _measure(
    target: str,
    values: dict[str, tuple[int, ...] | None],
    steps: int | None,
    seeds: int,
    progress: Progress | None,
) -> Forecast:
    """Measure the forecast; output of the target's code goes to stderr, so that stdout holds only the result."""
    locate(target)
    # Imported here so that a wrong target is reported without waiting for torch.
    from leadline.api import forecast as measure_forecast

    with redirect_stdout(sys.stderr), show_target(target):
        axes = [name for name, each in values.items() if each is not None and name != "depths"]
        return measure_forecast(
            load_family(target, axes), **values, steps=steps, seeds=seeds, progress=progress
        )
