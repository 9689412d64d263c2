"""Messages to the live page: a whole run, or what is new since a cursor, thinned to what a page can draw."""

from __future__ import annotations

import math
import sys
from array import array
from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

from msgspec.structs import asdict

from leadline.checks._history import ABSENT
from leadline.monitor.runfile.read import MAX_STEP, Changes, Run
from leadline.records.run import Alert, Event
from leadline.text import clean, count

Item = TypeVar("Item")


def thin(steps: Sequence[int], values: Sequence[float], count: int) -> tuple[list[int], list[float]]:
    """Return about `count` points: the smallest, the largest and the first non-finite value of each interval.

    The first and the last point are always included.
    """
    if len(steps) <= count:
        return list(steps), list(values)
    size = math.ceil(3 * len(steps) / count)
    chosen = {0, len(steps) - 1}
    for start in range(0, len(steps), size):
        chosen.update(_extreme_indices(values, range(start, min(start + size, len(steps)))))
    indices = sorted(chosen)
    return [steps[index] for index in indices], [values[index] for index in indices]


def _extreme_indices(values: Sequence[float], interval: range) -> set[int]:
    finite = [index for index in interval if math.isfinite(values[index])]
    non_finite = next((index for index in interval if not math.isfinite(values[index])), None)
    indices = {min(finite, key=values.__getitem__), max(finite, key=values.__getitem__)} if finite else set()
    return indices if non_finite is None else indices | {non_finite}


def evenly_spaced(items: Sequence[Item], count: int) -> list[Item]:
    """Return at most `count` items at even distances, including the first and the last."""
    if len(items) <= count:
        return list(items)
    return [items[round(index * (len(items) - 1) / (count - 1))] for index in range(count)]


def reduce_rows(values: Sequence[float], length: int, rows: int) -> array[float]:
    """Return the largest value, or NaN if there is one, in each of `rows` equal ranges of an axis of `length` labels.

    Labels beyond the end of `values` count as not measured.
    """
    full = array("f", values[:length])
    full.extend([ABSENT] * (length - len(full)))
    if rows >= length:
        return full
    return array("f", (_largest(full[first:last]) for first, last in row_ranges(length, rows)))


def row_ranges(length: int, rows: int) -> list[tuple[int, int]]:
    """Return first and past-the-end index of each row if an axis of `length` labels is shown in at most `rows` rows."""
    rows = min(rows, length)
    return [(row * length // rows, (row + 1) * length // rows) for row in range(rows)]


def _largest(values: array[float]) -> float:
    return math.nan if any(map(math.isnan, values)) else max(values)


# Heuristic: points per curve; three for each pixel column of a chart at usual widths.
MAX_POINTS = 1500
# Heuristic: columns per heat map; they fit the narrowest screen, and a map then has at most 140 kB.
MAX_COLUMNS = 256
# Derived: the pixel lines of a heat map (HEIGHT in heat.js), so that no row hides another.
MAX_ROWS = 140
# Heuristic: new columns per message; a page cannot show more in the half second between two messages.
MAX_NEW_COLUMNS = 32
# Heuristic: alerts or events that a page lists; nobody reads more.
MAX_LISTED_NOTES = 200

Message = dict[str, Any]
Columns = tuple[Sequence[int], Sequence[Sequence[float]]]


def full_message(run: Run) -> Message:
    """Return everything that a page shows of a run, thinned so that its size does not grow with the run's length."""
    axes = run.axes
    message = {
        **status(run),
        "whole": True,
        "axes": axis_rows(axes),
        "scalars": {name: thin(*run.scalars(name), MAX_POINTS) for name in run.scalar_names},
        "vectors": {
            name: pack_columns(axis, axes, _read_columns(run, name)) for name, axis in run.vector_axes.items()
        },
    }
    return message | alerts_and_events(run)


def window_message(run: Run, first: int, last: int) -> Message:
    """Return the steps from `first` to `last` at the resolution of the page, for a page that zooms in."""
    axes = run.axes
    series = {name: run.scalars(name, first, last + 1) for name in run.scalar_names}
    vectors = {name: (axis, _read_columns(run, name, first, last)) for name, axis in run.vector_axes.items()}
    return {
        **status(run),
        "whole": False,
        "scalars": {name: thin(*each, MAX_POINTS) for name, each in series.items()},
        "vectors": {name: pack_columns(axis, axes, columns) for name, (axis, columns) in vectors.items()},
    }


def update_message(run: Run, changes: Changes, *, axes_are_known: bool) -> Message:
    """Return what was written since a cursor, and the status of the run."""
    axes, axis_of = run.axes, run.vector_axes
    vectors = {
        name: pack_columns(
            axis_of[name],
            axes,
            (evenly_spaced(steps, MAX_NEW_COLUMNS), evenly_spaced(columns, MAX_NEW_COLUMNS)),
        )
        for name, (steps, columns) in changes.vectors.items()
    }
    message = {
        **status(run),
        "whole": False,
        "scalars": {name: thin(*series, MAX_POINTS) for name, series in changes.scalars.items()},
        "vectors": vectors,
    }
    if not axes_are_known:
        message["axes"] = axis_rows(axes)
    return (
        message | alerts_and_events(run) if changes.alerts or changes.events or changes.reports else message
    )


def status(run: Run) -> Message:
    """Return the header of the page and the active alerts."""
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
            "overhead": run.latest("overhead"),
            "budget": info.budget,
            "ranks": info.world_size,
        },
        "standing": [_alert(alert) for alert in run.standing],
    }


def alerts_and_events(run: Run) -> Message:
    return {
        "alerts": [_alert(alert) for alert in run.alerts()[-MAX_LISTED_NOTES:]],
        "events": [_event(event) for event in run.events()[-MAX_LISTED_NOTES:]],
        "reports": run.reports,
    }


def axis_rows(axes: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """Return the row labels of each axis and its number of labels."""
    return {
        name: {
            "count": len(labels),
            "labels": [_row_label(labels, *each) for each in row_ranges(len(labels), MAX_ROWS)],
            "starts": [first for first, _ in row_ranges(len(labels), MAX_ROWS)],
        }
        for name, labels in axes.items()
    }


def pack_columns(axis: str, axes: Mapping[str, Sequence[str]], columns: Columns) -> Message:
    """Return the columns of a heat map as base64 of little-endian float32, one column after the other."""
    length = len(axes.get(axis, ())) or max(map(len, columns[1]), default=0)
    data = array("f")
    for column in columns[1]:
        data.extend(reduce_rows(column, length, MAX_ROWS))
    if sys.byteorder == "big":  # pragma: no cover  (the tests have no such machine)
        data.byteswap()
    rows = min(length, MAX_ROWS)
    return {"axis": axis, "steps": list(columns[0]), "rows": rows, "data": b64encode(data.tobytes()).decode()}


def _read_columns(run: Run, name: str, first: int = 0, last: int = MAX_STEP) -> Columns:
    """Read only the columns that are shown, because a long run may exceed the memory."""
    measured = [step for step in run.vector_steps(name) if first <= step <= last]
    steps: list[int] = []
    columns: list[array[float]] = []
    for step in evenly_spaced(measured, MAX_COLUMNS):
        new_steps, new_columns = run.vectors(name, step, step + 1)
        steps += new_steps
        columns += new_columns
    return steps, columns


def _row_label(labels: Sequence[str], first: int, end: int) -> str:
    name = clean(labels[first])
    return name if end - first == 1 else f"{name} … {clean(labels[end - 1])}"


def _alert(alert: Alert) -> Message:
    fields = (
        "code",
        "name",
        "severity",
        "message",
        "action",
        "where",
        "layers",
        "since",
        "step",
        "trend",
        "forecast",
    )
    return _clean_fields(asdict(alert), (*fields, "rank", "state"))


def _event(event: Event) -> Message:
    return _clean_fields(asdict(event), ("step", "time", "kind", "message"))


def _clean_fields(values: Mapping[str, Any], names: Iterable[str]) -> Message:
    return {name: clean(values[name]) if isinstance(values[name], str) else values[name] for name in names}
