"""Options of commands that run sweeps: where finished cells are kept, and who does the work."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from leadline.cli.options import file_option
from leadline.sweeps import Executor, Store, find_executor
from leadline.sweeps.choosing import NAMES

Command = TypeVar("Command", bound=Callable[..., Any])


def store_option(command: Command) -> Command:
    text = "Keep finished cells in this file; what it holds already is not run again."
    return file_option("--store", text=text)(command)


def executor_options(command: Command) -> Command:
    """Which executor, how many workers, and which cluster."""
    name = click.option(
        "--executor",
        type=click.Choice(NAMES),
        default="joblib",
        show_default=True,
        help="Worker processes, this process, or Ray.",
    )
    workers = click.option(
        "--workers", type=click.IntRange(min=1), default=1, show_default=True, help="Processes at once."
    )
    address = click.option("--address", help="Of a running Ray cluster; left out: Ray is started here.")
    return name(workers(address(command)))


def open_store(path: Path | None) -> Store:
    return Store(path)


def find(name: str, workers: int | None, address: str | None) -> Executor:
    """Only Ray has an address."""
    if address is not None and name != "ray":
        raise click.UsageError("--address is that of a Ray cluster: add --executor ray")
    return find_executor(name, workers=workers, address=address)
