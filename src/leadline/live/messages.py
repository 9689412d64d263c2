"""What a page is told of a run: all of it in short, or what is new since a cursor."""

from __future__ import annotations

import statistics
import sys
from array import array
from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec.structs import asdict

from leadline.drawing.numbers import count
from leadline.live.thinning import ranges, spread, squeeze, thin
from leadline.records.run import Alert, Event
from leadline.report.text import clean
from leadline.runs.reading import LAST, Changes, Run

MOST_POINTS = 1500  # of a curve; ours: three for each pixel column of a chart at usual widths
MOST_COLUMNS = 256  # of a heat map; ours: fits the narrowest screen, and a map is then at most 140 kB
MOST_ROWS = 140  # as many as a map has lines of pixels (heat.js, HEIGHT): no row is hidden by another
MOST_NEW = 32  # columns in one piece of news; ours: a page cannot show more in the second between two
MOST_NOTES = 200  # alerts or events that a page lists; ours: nobody reads more
RECENT = 500  # recorded steps over which overhead is measured; ours: long enough to hold sampled ones

Message = dict[str, Any]
Columns = tuple[Sequence[int], Sequence[Sequence[float]]]


def whole(run: Run) -> Message:
    """Everything that a page shows of a run, thinned so that its size does not grow with the run's length."""
    axes = run.axes
    message = {
        **standing(run),
        "whole": True,
        "axes": axes_of(axes),
        "scalars": {name: thin(*run.scalars(name), MOST_POINTS) for name in run.scalar_names},
        "vectors": {name: packed(axis, axes, _columns(run, name)) for name, axis in run.vector_axes.items()},
    }
    return message | notes(run)


def window(run: Run, first: int, last: int) -> Message:
    """The steps from `first` to `last` as closely as they can be shown; news to a page that zooms in."""
    axes = run.axes
    series = {name: run.scalars(name, first, last + 1) for name in run.scalar_names}
    vectors = {name: (axis, _columns(run, name, first, last)) for name, axis in run.vector_axes.items()}
    return {
        **standing(run),
        "whole": False,
        "scalars": {name: thin(*each, MOST_POINTS) for name, each in series.items()},
        "vectors": {name: packed(axis, axes, columns) for name, (axis, columns) in vectors.items()},
    }


def news(run: Run, changes: Changes, *, axes_are_known: bool) -> Message:
    """What was written since a cursor, and how the run stands."""
    axes, homes = run.axes, run.vector_axes
    vectors = {
        name: packed(homes[name], axes, (spread(steps, MOST_NEW), spread(columns, MOST_NEW)))
        for name, (steps, columns) in changes.vectors.items()
    }
    message = {
        **standing(run),
        "whole": False,
        "scalars": {name: thin(*series, MOST_POINTS) for name, series in changes.scalars.items()},
        "vectors": vectors,
    }
    if not axes_are_known:
        message["axes"] = axes_of(axes)
    return message | notes(run) if changes.alerts or changes.events or changes.reports else message


def standing(run: Run) -> Message:
    """What the head of the page says, and the alerts that stand."""
    info, (steps, last_step, updated) = run.info, run.extent
    return {
        "header": {
            "file": clean(run.path.name),
            "model": clean(info.model),
            "optimizer": clean(info.optimizer),
            "parameters": count(info.parameters),
            "note": clean(info.note),
            "state": run.state,
            "steps": steps,
            "last_step": last_step,
            "started": info.started,
            "updated": updated,
            "loss": run.latest("loss"),
            "overhead": overhead(run, last_step),
            "budget": info.budget,
            "ranks": info.world_size,
        },
        "standing": [_alert(alert) for alert in run.standing],
    }


def overhead(run: Run, last_step: int | None) -> float | None:
    """Seconds of watching for each second of training over the last recorded steps; None if it was not measured.

    Steps of which nothing was recorded cost next to nothing, and are counted as the usual step.
    """
    if last_step is None or not {"watch_seconds", "step_seconds"} <= {*run.scalar_names}:
        return None
    steps, spent = run.scalars("watch_seconds", since=max(0, last_step - RECENT))
    _, took = run.scalars("step_seconds", since=max(0, last_step - RECENT))
    if len(steps) < 2 or not took:
        return None
    trained = (steps[-1] - steps[0] + 1) * statistics.median(took)
    return sum(spent) / trained if trained > 0 else None


def notes(run: Run) -> Message:
    return {
        "alerts": [_alert(alert) for alert in run.alerts()[-MOST_NOTES:]],
        "events": [_event(event) for event in run.events()[-MOST_NOTES:]],
        "reports": run.reports,
    }


def axes_of(axes: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """Names of the rows of each axis, and how many places it has."""
    return {
        name: {
            "count": len(labels),
            "labels": [_row(labels, *each) for each in ranges(len(labels), MOST_ROWS)],
            "starts": [first for first, _ in ranges(len(labels), MOST_ROWS)],
        }
        for name, labels in axes.items()
    }


def packed(axis: str, axes: Mapping[str, Sequence[str]], columns: Columns) -> Message:
    """Columns of a heat map: float32, little-endian, one column after the other, as base64."""
    length = len(axes.get(axis, ())) or max(map(len, columns[1]), default=0)
    data = array("f")
    for column in columns[1]:
        data.extend(squeeze(column, length, MOST_ROWS))
    if sys.byteorder == "big":  # pragma: no cover  (the tests have no such machine)
        data.byteswap()
    rows = min(length, MOST_ROWS)
    return {"axis": axis, "steps": list(columns[0]), "rows": rows, "data": b64encode(data.tobytes()).decode()}


def _columns(run: Run, name: str, first: int = 0, last: int = LAST) -> Columns:
    """Read where they are shown, and nowhere else: a long run is larger than memory."""
    measured = [step for step in run.vector_steps(name) if first <= step <= last]
    steps: list[int] = []
    columns: list[array[float]] = []
    for step in spread(measured, MOST_COLUMNS):
        found = run.vectors(name, step, step + 1)
        steps += found[0]
        columns += found[1]
    return steps, columns


def _row(labels: Sequence[str], first: int, past: int) -> str:
    name = clean(labels[first])
    return name if past - first == 1 else f"{name} … {clean(labels[past - 1])}"


def _alert(alert: Alert) -> Message:
    shown = ("code", "name", "severity", "message", "where", "layers", "since", "step", "trend", "forecast")
    return _cleaned(asdict(alert), (*shown, "rank", "state"))


def _event(event: Event) -> Message:
    return _cleaned(asdict(event), ("step", "time", "kind", "message"))


def _cleaned(fields: Mapping[str, Any], shown: Iterable[str]) -> Message:
    return {name: clean(fields[name]) if isinstance(fields[name], str) else fields[name] for name in shown}
