"""`leadline lr`: the loss after one step over learning rates in one figure, with the safe rate marked."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING

import click
from msgspec.structs import replace

from leadline.cli.exit_codes import FAILED, FINE, FOUND, UNDECIDED
from leadline.cli.options import (
    Progress,
    detail_options,
    examples,
    html_option,
    output_option,
    picture_options,
    progress_bar,
)
from leadline.cli.output import emit, emit_pictures, explain_crash, say
from leadline.cli.program_target import CommandOnPrograms, at_first_step, is_program, program_arguments
from leadline.errors import LeadlineError
from leadline.records import RateScan
from leadline.targets import load, locate, move_case, show_target
from leadline.text import clean, number

if TYPE_CHECKING:
    from leadline.case import Case

# Heuristic: rows of the chart in a terminal, an odd number so that the first loss has the middle one.
CHART_ROWS = 11
# Heuristic: columns of a place; every rate gets the same width.
COLUMN_WIDTH = 3
DEMO = "leadline.lab.demo:residual_mlp"


@click.command(
    cls=CommandOnPrograms,
    epilog=examples(
        "leadline lr train.py",
        "leadline lr train.py -- --epochs 3",
        "leadline lr train.py:make_case --svg rates.svg",
        f"leadline lr {DEMO} --format json --output rates.json",
    ),
)
@click.argument("target")
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True)
@output_option
@html_option
@picture_options
@click.option(
    "--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed before the factory."
)
@detail_options
@click.pass_context
def lr(
    context: click.Context,
    target: str,
    form: str,
    output: Path | None,
    page: Path | None,
    svg: Path | None,
    png: Path | None,
    seed: int,
    quiet: bool,
    verbose: bool,
) -> int:
    """Measure the loss after one step at learning rates around yours, and mark the safe one.

    TARGET is as for `leadline check`, with an optimizer. The optimizer makes one step, and the loss is measured along
    it at smaller and larger rates; the safe rate is the largest at which the step still does what the gradient
    predicts. Everything is undone. It takes a few dozen forward passes on one batch.

    Exit codes: 0 your rate is safe, 1 it is above the safe one, 2 wrong usage or an error, 3 no safe rate was found.
    """
    if not is_program(target):
        locate(target)
    try:
        with progress_bar(quiet=quiet) as progress:
            scan = _scan(target, program_arguments(context), seed, progress)
    except (LeadlineError, click.ClickException):
        raise
    except Exception as error:
        say(explain_crash(error))
        return FAILED
    scan = replace(scan, target=target)
    if page is not None:
        emit(_page(scan), page)
    emit_pictures(scan, svg, png)
    if form == "json":
        emit(scan.to_json() + "\n", output)
    else:
        emit(scan.sentence + "\n" if quiet else show(scan, verbose=verbose), output)
    if scan.safe_lr is None:
        return UNDECIDED
    return FINE if scan.is_safe else FOUND


def _scan(target: str, arguments: tuple[str, ...], seed: int, progress: Progress | None) -> RateScan:
    def measure(case: Case) -> RateScan:
        from leadline.readings.rate_scan import scan_rates  # imports torch

        return scan_rates(case, progress)

    if is_program(target):
        return at_first_step(target, arguments, measure)
    import torch  # torch-free start

    with redirect_stdout(sys.stderr), show_target(target):
        torch.manual_seed(seed)
        return measure(move_case(load(target), device=None, dtype=None))


def show(scan: RateScan, *, verbose: bool = False) -> str:
    """The figure in characters: one column per rate, marks for the user's and the safe rate, and the sentence."""
    safe = (
        "none"
        if scan.safe_lr is None
        else f"{number(scan.safe_lr)}{' or more' if scan.safe_lr_is_bound else ''}"
    )
    lines = [f"{clean(scan.model)} · {clean(scan.optimizer)} · {scan.seconds:.1f} s", "", *_chart(scan), ""]
    lines += [f"safe rate  {safe}", f"your rate  {number(scan.lr)}"]
    if verbose and scan.stability_lr is not None:
        lines.append(f"stability  {number(scan.stability_lr)}")
    lines += ["", scan.sentence]
    if verbose:
        rows = zip(scan.rates, scan.losses, scan.predicted, strict=True)
        lines += ["", f"{'rate':>10} {'loss':>12} {'predicted':>12}"]
        lines += [f"{number(rate):>10} {number(loss):>12} {number(told):>12}" for rate, loss, told in rows]
    return "\n".join(lines) + "\n"


def _chart(scan: RateScan) -> list[str]:
    """Rows from the highest loss to the lowest: ● measured, · predicted, ▲ above the frame, × not finite."""
    finite = [loss for loss in scan.losses if loss is not None]
    low = min([scan.loss, *finite])
    high = scan.loss + max(scan.loss - low, abs(scan.loss) * 0.05)
    span = high - low or 1.0

    def row_of(value: float) -> int:
        return round((CHART_ROWS - 1) * (high - value) / span)

    cells = [[" "] * len(scan.rates) for _ in range(CHART_ROWS)]
    for column, (loss, told) in enumerate(zip(scan.losses, scan.predicted, strict=True)):
        if low <= told <= high:
            cells[row_of(told)][column] = "·"
        if loss is None or loss > high:
            cells[0][column] = "×" if loss is None else "▲"
        else:
            cells[row_of(loss)][column] = "●"
    labels = ["" for _ in range(CHART_ROWS)]
    for value in (high, scan.loss, low):
        labels[row_of(value)] = number(value)
    width = max(map(len, labels))
    rows = [
        f"{label:>{width}} │{''.join(f'{cell:^{COLUMN_WIDTH}}' for cell in row)}".rstrip()
        for label, row in zip(labels, cells, strict=True)
    ]
    return [
        f"{'loss':>{width}}   ● after one step   · what the gradient predicts",
        *rows,
        f"{'':>{width}} └{'─' * (COLUMN_WIDTH * len(scan.rates))}",
        *_marks(scan, width),
    ]


def _marks(scan: RateScan, width: int) -> list[str]:
    """Below the axis: its ends, and the places of the user's and the safe rate."""
    room = COLUMN_WIDTH * len(scan.rates)
    first, last = number(scan.rates[0]), number(scan.rates[-1])
    lines = [f"{'':>{width}}  {first}{'learning rate':^{max(room - len(first) - len(last), 0)}}{last}"]
    for name, rate in (("yours", scan.lr), ("safe", scan.safe_lr)):
        if rate is not None and scan.rates[0] <= rate <= scan.rates[-1]:
            nearest = min(range(len(scan.rates)), key=lambda place: abs(scan.rates[place] / rate - 1))
            lines.append(f"{'':>{width}}  {' ' * (COLUMN_WIDTH * nearest + 1)}↑ {name} {number(rate)}")
    return lines


def _page(scan: RateScan) -> str:
    """The picture as a page that opens in any browser."""
    from leadline.report.charts.drawing import to_svg  # only a page needs it
    from leadline.report.charts.svg import words
    from leadline.report.pictures import rates_picture

    head = f"<title>Learning rates of {words(scan.model)}</title>"
    style = "<style>body{margin:2rem;display:grid;place-items:center}svg{max-width:100%;height:auto}</style>"
    return f'<!doctype html>\n<meta charset="utf-8">\n{head}\n{style}\n{to_svg(rates_picture(scan))}'
