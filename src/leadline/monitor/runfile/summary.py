"""The summary of a run file: what it trains, how far it came, and whether it is still written."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from leadline.monitor.runfile import SUFFIX
from leadline.monitor.runfile.read import Run, State


class RunFileSummary(msgspec.Struct, frozen=True, kw_only=True):
    """What `leadline runs` shows of a file."""

    path: str
    id: str
    model: str
    optimizer: str
    parameters: int
    state: State
    started: float
    updated: float | None
    """When the last step was written; None if there is none."""
    steps: int
    """Number of recorded steps."""
    first_step: int | None
    last_step: int | None
    loss: float | None
    """The last loss; None if none was stored."""
    alerts: int
    """Number of alerts that were ever raised."""
    standing: tuple[str, ...]
    """Codes of the active alerts."""
    bytes: int


def summarize(path: Path) -> RunFileSummary:
    """Return the summary; raise InputError or SchemaError if the file is not an intact run file."""
    with Run(path) as run:
        info, (steps, last_step, updated) = run.info, run.extent
        return RunFileSummary(
            path=str(path),
            id=info.id,
            model=info.model,
            optimizer=info.optimizer,
            parameters=info.parameters,
            state=run.state,
            started=info.started,
            updated=updated,
            steps=steps,
            first_step=run.first_step,
            last_step=last_step,
            loss=run.latest("loss"),
            alerts=sum(alert.state == "raised" for alert in run.alerts()),
            standing=tuple(alert.code for alert in run.standing),
            bytes=path.stat().st_size,
        )


def find_runs(place: Path) -> Iterator[Path]:
    """Yield the file itself, or all run files below a folder except in hidden folders."""
    if not place.is_dir():
        yield place
        return
    for folder, folders, files in os.walk(place):
        folders[:] = sorted(each for each in folders if not each.startswith("."))
        yield from (Path(folder, each) for each in sorted(files) if each.endswith(SUFFIX))
