"""Options and output shared by the commands that run a sweep."""

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
from leadline.report.look import Look

Option = Callable[[Callable[..., int]], Callable[..., int]]

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


class SweepFunction(Protocol[R_co]):
    """A function that runs a sweep and returns its record."""

    def __call__(self, *, store: CellStore, executor: Executor, progress: Progress | None) -> R_co: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepOptions:
    """The values of the options that every sweep command has."""

    form: str
    store: Path | None
    executor: str
    workers: int
    address: str | None
    output: Path | None
    page: Path | None
    quiet: bool


def sweep_options(command: Callable[..., int]) -> Callable[..., int]:
    """The options of `Choices`, given to the command as one argument, `options`."""

    @wraps(command)
    def with_options(**given: Any) -> int:
        options = SweepOptions(**{name: given.pop(name) for name in SweepOptions.__dataclass_fields__})
        return command(options=options, **given)

    decorators: list[Option] = [
        click.option(
            "--format",
            "form",
            type=click.Choice(["text", "json"]),
            default="text",
            show_default=True,
            help="Output format.",
        ),
        file_option(
            "--store",
            text="Save finished results in this file; results that it already contains are not computed again.",
        ),
        *_executor_options(),
        output_option,
        html_option,
        click.option("-q", "--quiet", is_flag=True, help="Show no progress."),
    ]
    decorated: Callable[..., int] = with_options
    for decorator in reversed(decorators):
        decorated = decorator(decorated)
    return decorated


def _executor_options() -> list[Option]:
    """Return the options that choose the executor, the number of workers and the cluster."""
    return [
        click.option(
            "--executor",
            type=click.Choice(EXECUTOR_NAMES),
            default="joblib",
            show_default=True,
            help="Run in worker processes (joblib), in this process (here), or on Ray.",
        ),
        click.option(
            "--workers",
            type=click.IntRange(min=1),
            default=1,
            show_default=True,
            help="Number of parallel processes.",
        ),
        click.option(
            "--address", help="Address of a running Ray cluster. [default: start Ray on this machine]"
        ),
    ]


def show_sweep(
    options: SweepOptions,
    cells: str,
    measure: SweepFunction[R],
    formats: Mapping[str, Callable[[R, Look], str]],
) -> int:
    """Run the sweep and write its record. `cells` names what the progress bar counts."""
    executor = _executor(options)
    try:
        with progress_bar(quiet=options.quiet, first=cells) as progress:
            counted = progress and (lambda done, total, text: progress(done, total, cells))
            record = measure(store=CellStore(options.store), executor=executor, progress=counted)
    except KeyboardInterrupt:
        click.echo(_interruption_message(options.store, cells), err=True)
        raise
    look = look_for(no_color=options.output is not None)
    if options.page is not None:
        emit(formats["html"](record, look), options.page)
    emit(formats[options.form](record, look), options.output)
    return FINE


def _interruption_message(store: Path | None, cells: str) -> str:
    """Say what an interrupted sweep saved and how to continue it."""
    if store is None:
        return f"interrupted: no results were saved. Use --store FILE to save finished {cells} and continue later"
    return f"interrupted: the finished {cells} are saved in {store}. Run the same command again to continue"


def _executor(options: SweepOptions) -> Executor:
    if options.address is not None and options.executor != "ray":
        raise click.UsageError("--address is the address of a Ray cluster: add --executor ray")
    return find_executor(options.executor, workers=options.workers, address=options.address)


class Numbers(click.ParamType[tuple[float, ...]]):
    """Numbers separated by commas, such as `1e-3,3e-3,1e-2`."""

    name = "numbers"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[float, ...]:
        try:
            return tuple(float(each) for each in str(value).split(","))
        except ValueError:
            self.fail(f"{value!r} is not a list of numbers such as 1e-3,3e-3,1e-2", param, ctx)
