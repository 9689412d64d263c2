"""One line about a run: what it trains, how far it came, and whether it still does."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from leadline.monitor.runfile import SUFFIX
from leadline.monitor.runfile.read import Run, State

__all__ = ["SUFFIX", "Summary", "find_runs", "summarise"]


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """What `leadline runs` tells of a file."""

    path: str
    id: str
    model: str
    optimizer: str
    parameters: int
    state: State
    started: float
    updated: float | None
    """When its last step was written; None if it has none."""
    steps: int
    """How many were recorded."""
    first_step: int | None
    last_step: int | None
    loss: float | None
    """The last one; None if none was stored."""
    alerts: int
    """How many were ever raised."""
    standing: tuple[str, ...]
    """Codes of those that stand."""
    bytes: int


def summarise(path: Path) -> Summary:
    """Raises InputError or SchemaError if the file is no sound run."""
    with Run(path) as run:
        info, (steps, last_step, updated) = run.info, run.extent
        return Summary(
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
    """The file itself, or all run files below a folder; hidden folders are passed by."""
    if not place.is_dir():
        yield place
        return
    for folder, folders, files in os.walk(place):
        folders[:] = sorted(each for each in folders if not each.startswith("."))
        yield from (Path(folder, each) for each in sorted(files) if each.endswith(SUFFIX))
