"""Two profiles over one axis of depth: before and after a fix, or one report against another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import zip_longest

from leadline.records import Profile
from leadline.report.charts.lines import Values
from leadline.report.html.panel import Axis, Panel, Series, axis_of
from leadline.report.html.panels import ORDER, panels_of


def overlaid(first: Profile, second: Profile, labels: tuple[str, str]) -> tuple[Axis, list[Panel]]:
    """The panels that either has, each with the main line of both, place by place in order of depth.

    Theory is left out: four lines and two bands in one chart hide what changed.
    """
    here, there = ({panel.key: panel for panel in panels_of(each)} for each in (first, second))
    axis = joint(axis_of(first), axis_of(second))
    keys = [key for key in ORDER if key in here or key in there]
    return axis, [_both(here.get(key), there.get(key), labels, len(axis.names)) for key in keys]


def joint(first: Axis, second: Axis) -> Axis:
    """The longer of the two axes; where names differ, both are given."""
    longer = first if len(first.names) >= len(second.names) else second
    pairs = zip_longest(first.names, second.names, fillvalue="")
    names = tuple(a if a == b or not b else f"{a} | {b}" if a else b for a, b in pairs)
    return replace(longer, names=names)


def _both(first: Panel | None, second: Panel | None, labels: tuple[str, str], length: int) -> Panel:
    panels = [
        (panel, label, tone)
        for panel, label, tone in zip((first, second), labels, ("second", "main"), strict=True)
        if panel is not None
    ]
    shown = panels[-1][0]
    common = _common([panel for panel, _, _ in panels])
    series = tuple(_line(_main(panel, common), label, tone, length) for panel, label, tone in panels)
    notes = tuple(f"{label}: {panel.notes[0]}" for panel, label, _ in panels if panel.notes)
    kind = f", {common}" if shown.key == "weights" and common else ""
    return replace(shown, series=series, notes=notes, unit=f"{shown.unit}{kind}")


def _common(panels: Sequence[Panel]) -> str:
    """The first line that all of them have; "" if there is none."""
    labels = [[each.label for each in panel.series] for panel in panels]
    return next((label for label in labels[0] if all(label in each for each in labels)), "")


def _main(panel: Panel, common: str) -> Series:
    return next((each for each in panel.series if each.label == common), panel.series[0])


def _line(series: Series, label: str, tone: str, length: int) -> Series:
    return Series(label=label, values=_padded(series.values, length), tone=tone, sparse=series.sparse)


def _padded(values: Values, length: int) -> Values:
    return (*values, *[None] * (length - len(values)))
