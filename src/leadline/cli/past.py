"""Targets of `leadline check` that are trainings which have run: run files and plain logs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click
from msgspec.structs import replace

from leadline.report import Report
from leadline.runs import SUFFIX
from leadline.runs.logs import ALIASES, EVENTS, is_log

Command = TypeVar("Command", bound=Callable[..., Any])


def is_past(target: str) -> bool:
    """A run file or a log, by its name."""
    return target.endswith(SUFFIX) or is_log(Path(target))


def look_back(target: str, columns: Mapping[str, str], *, drop: Collection[str] = frozenset()) -> Report:
    """What is known of a training that has run. Needs no torch."""
    from leadline.alarms.hindsight import judge_run, judge_samples
    from leadline.runs.logs import read_log
    from leadline.runs.reading import Run

    path = Path(target)
    if target.endswith(SUFFIX):
        with Run(path) as run:
            return replace(judge_run(run, drop), target=target)
    source = "TensorBoard log" if EVENTS in path.name or path.is_dir() else "CSV file"
    return replace(judge_samples(read_log(path, columns), source, path.name, drop), target=target)


def _pairs(_: click.Context, __: click.Parameter, given: Sequence[str]) -> dict[str, str]:
    """`--column loss=train/ce` as an entry; a name may hold further equals signs."""
    pairs = [each.partition("=") for each in given]
    for metric, equals, column in pairs:
        if not (metric and equals and column) or metric not in ALIASES:
            raise click.BadParameter(f"expected METRIC=NAME, METRIC one of {', '.join(ALIASES)}")
    return {metric: column for metric, _, column in pairs}


def column_option(command: Command) -> Command:
    text = "Of a log: which column, or tag, a number is in, for instance loss=train/ce."
    return click.option(
        "--column", "columns", multiple=True, metavar="METRIC=NAME", callback=_pairs, help=text
    )(command)
