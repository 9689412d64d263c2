"""`leadline forecast`: measures a network at several depths and forecasts how deep it can go."""

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


class Depths(click.ParamType[tuple[int, ...]]):
    """A list of depths such as `4,8,16,32`."""

    name = "depths"

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
        "leadline forecast my.package:build --format json --output forecast.json",
        f"leadline forecast {DEMO} --html forecast.html",
    )
)
@click.argument("target")
@click.option(
    "--depths",
    type=Depths(),
    default="4,8,16,32",
    show_default=True,
    help="Increasing depths, separated by commas.",
)
@click.option(
    "--seeds", type=click.IntRange(min=1), default=3, show_default=True, help="Number of networks per depth."
)
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True)
@output_option
@html_option
@detail_options
@color_option
def forecast(
    target: str,
    depths: tuple[int, ...],
    seeds: int,
    form: str,
    output: Path | None,
    page: Path | None,
    quiet: bool,
    verbose: bool,
    no_color: bool,
) -> int:
    """Build a network at several depths and say how deep it can go.

    TARGET is path/file.py:build or package.module:build. The function takes the depth as its one argument and returns
    a leadline.Case, or a tuple or dict of its fields: model, inputs, targets, loss and optimizer (required here). A
    function without arguments is one network: the forecast then extrapolates to more of its blocks.

    Exit codes: 0 done, 2 wrong usage or an error.
    """
    look = look_for(quiet=quiet, verbose=verbose, no_color=no_color or output is not None)
    try:
        with progress_bar(quiet=quiet) as progress:
            record = _measure(target, depths, seeds, progress)
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


def _measure(target: str, depths: tuple[int, ...], seeds: int, progress: Progress | None) -> Forecast:
    """Measure the forecast; output of the target's code goes to stderr, so that stdout holds only the result."""
    locate(target)
    # Imported here so that a wrong target is reported without waiting for torch.
    from leadline.api import forecast as measure_forecast

    with redirect_stdout(sys.stderr), show_target(target):
        return measure_forecast(load_family(target), depths, seeds=seeds, progress=progress)
