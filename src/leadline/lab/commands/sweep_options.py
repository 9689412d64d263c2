"""Options and output that the commands of sweeps share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any, Protocol, TypeVar

import click

from leadline.cli.exit_codes import FINE
from leadline.cli.options import Progress, file_option, html_option, output_option, progress_bar
from leadline.cli.output import emit, look_for
from leadline.lab.sweeps import CellStore, Executor, find_executor
from leadline.lab.sweeps.executors import EXECUTOR_NAMES
from leadline.report.layout import Look

Option = Callable[[Callable[..., int]], Callable[..., int]]

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


class SweepFunction(Protocol[R_co]):
    """A sweep that is ready to go."""

    def __call__(self, *, store: CellStore, executor: Executor, progress: Progress | None) -> R_co: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepOptions:
    """What every command that runs a sweep is told beside the sweep itself."""

    form: str
    store: Path | None
    executor: str
    workers: int
    address: str | None
    output: Path | None
    page: Path | None
    quiet: bool


def sweep_options(command: Callable[..., int]) -> Callable[..., int]:
    """The options of `Choices`, given to the command as one argument, `choices`."""

    @wraps(command)
    def gathered(**given: Any) -> int:
        choices = SweepOptions(**{name: given.pop(name) for name in SweepOptions.__dataclass_fields__})
        return command(choices=choices, **given)

    options: list[Option] = [
        click.option(
            "--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True
        ),
        file_option(
            "--store", text="Keep finished cells in this file; what it holds already is not run again."
        ),
        *_executor_options(),
        output_option,
        html_option,
        click.option("-q", "--quiet", is_flag=True, help="No progress."),
    ]
    found: Callable[..., int] = gathered
    for option in reversed(options):
        found = option(found)
    return found


def _executor_options() -> list[Option]:
    """Which executor, how many workers, and which cluster."""
    return [
        click.option(
            "--executor",
            type=click.Choice(EXECUTOR_NAMES),
            default="joblib",
            show_default=True,
            help="Worker processes, this process, or Ray.",
        ),
        click.option(
            "--workers", type=click.IntRange(min=1), default=1, show_default=True, help="Processes at once."
        ),
        click.option("--address", help="Of a running Ray cluster; left out: Ray is started here."),
    ]


def show_sweep(
    choices: SweepOptions,
    cells: str,
    measure: SweepFunction[R],
    formats: Mapping[str, Callable[[R, Look], str]],
) -> int:
    """Measure and write what was found. `cells`: what the progress bar counts."""
    executor = _find(choices)
    try:
        with progress_bar(quiet=choices.quiet, first=cells) as progress:
            counted = progress and (lambda done, total, text: progress(done, total, cells))
            found = measure(store=CellStore(choices.store), executor=executor, progress=counted)
    except KeyboardInterrupt:
        click.echo(_stopped(choices.store, cells), err=True)
        raise
    look = look_for(no_color=choices.output is not None)
    if choices.page is not None:
        emit(formats["html"](found, look), choices.page)
    emit(formats[choices.form](found, look), choices.output)
    return FINE


def _stopped(store: Path | None, cells: str) -> str:
    """What is left of a sweep that was interrupted, and how it goes on."""
    if store is None:
        return f"stopped: nothing is kept; with --store FILE the finished {cells} are, and the next run goes on there"
    return f"stopped: the finished {cells} are kept in {store}; the same command goes on from there"


def _find(choices: SweepOptions) -> Executor:
    """Only Ray has an address."""
    if choices.address is not None and choices.executor != "ray":
        raise click.UsageError("--address is that of a Ray cluster: add --executor ray")
    return find_executor(choices.executor, workers=choices.workers, address=choices.address)


# Numbers on the command line, with commas between them.


class Numbers(click.ParamType[tuple[float, ...]]):
    """`1e-3,3e-3,1e-2`."""

    name = "numbers"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[float, ...]:
        try:
            return tuple(float(each) for each in str(value).split(","))
        except ValueError:
            self.fail(f"{value!r} is not a list of numbers such as 1e-3,3e-3,1e-2", param, ctx)
