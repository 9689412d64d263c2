"""Messages for the live page: a whole run, or what is new since a cursor, thinned to what a page can draw."""

from __future__ import annotations

import math
import statistics
import sys
from array import array
from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

from msgspec.structs import asdict

from leadline.checks._history import ABSENT
from leadline.monitor.runfile.read import LAST, Changes, Run
from leadline.records.run import Alert, Event
from leadline.text import clean, count

Item = TypeVar("Item")


def thin(steps: Sequence[int], values: Sequence[float], most: int) -> tuple[list[int], list[float]]:
    """About `most` points at the most: of each stretch the smallest, the largest and the first that is no number.

    The first and the last point stay.
    """
    if len(steps) <= most:
        return list(steps), list(values)
    size = math.ceil(3 * len(steps) / most)
    kept = {0, len(steps) - 1}
    for start in range(0, len(steps), size):
        kept.update(_outstanding(values, range(start, min(start + size, len(steps)))))
    places = sorted(kept)
    return [steps[place] for place in places], [values[place] for place in places]


def _outstanding(values: Sequence[float], stretch: range) -> set[int]:
    finite = [place for place in stretch if math.isfinite(values[place])]
    odd = next((place for place in stretch if not math.isfinite(values[place])), None)
    found = {min(finite, key=values.__getitem__), max(finite, key=values.__getitem__)} if finite else set()
    return found if odd is None else found | {odd}


def spread(items: Sequence[Item], most: int) -> list[Item]:
    """At most `most` of them at even distances, the first and the last included."""
    if len(items) <= most:
        return list(items)
    return [items[round(place * (len(items) - 1) / (most - 1))] for place in range(most)]


def squeeze(values: Sequence[float], length: int, rows: int) -> array[float]:
    """One value for each of `rows` equal ranges of an axis of `length` places: the largest, or NaN if there is one.

    Places of the axis that `values` does not reach were not measured.
    """
    full = array("f", values[:length])
    full.extend([ABSENT] * (length - len(full)))
    if rows >= length:
        return full
    return array("f", (_largest(full[first:last]) for first, last in ranges(length, rows)))


def ranges(length: int, rows: int) -> list[tuple[int, int]]:
    """First and past-the-last place of each row, if an axis of `length` places is shown in `rows` rows at the most."""
    rows = min(rows, length)
    return [(row * length // rows, (row + 1) * length // rows) for row in range(rows)]


def _largest(values: array[float]) -> float:
    return math.nan if any(map(math.isnan, values)) else max(values)


# What a page is told of a run: all of it in short, or what is new since a cursor.

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
