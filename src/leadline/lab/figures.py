"""Figures of experiments: lines of numbers over depths or other places."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from leadline.records import Plot, PlotLine

Curve = Mapping[int, float] | Mapping[float, float]


def over(
    title: str,
    across: str,
    measured: Mapping[str, Curve],
    theory: Mapping[str, Curve] | None = None,
    *,
    log: bool = True,
) -> Plot:
    """Curves by their labels, over all places that any of them has."""
    curves = [(label, curve, False) for label, curve in measured.items()]
    curves += [(label, curve, True) for label, curve in (theory or {}).items()]
    places = sorted({place for _, curve, _ in curves for place in curve})
    lines = [
        PlotLine(label=label, values=_values(curve, places), theory=predicted)
        for label, curve, predicted in curves
    ]
    return Plot(
        title=title, across=across, names=tuple(f"{place:g}" for place in places), lines=tuple(lines), log=log
    )


def _values(curve: Curve, places: Sequence[float]) -> tuple[float | None, ...]:
    known = {float(place): value for place, value in curve.items()}
    return tuple(known.get(float(place)) for place in places)
