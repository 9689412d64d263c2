"""The depth profiles of a report as panels: what is drawn over depth, on which axis, and what is said above it."""

from __future__ import annotations

from dataclasses import replace

from leadline.drawing.chart import marked
from leadline.drawing.numbers import plural
from leadline.records import Block, Profile, Weight
from leadline.report.html.panel import Axis, Panel, Series, axis_of, is_known, span
from leadline.report.html.signals import backward_panel, branch_panel, forward_panel
from leadline.report.text import clean

KINDS_OF_WEIGHT = {
    "query": "second",
    "key": "third",
    "value": "sixth",
    "in a branch": "main",
    "end of a branch": "fourth",
    "outside of branches": "fifth",
}
"""How each kind of weight is drawn."""
ORDER = ("forward", "backward", "branches", "weights", "updates", "likeness", "attention", "units")
"""Keys of all panels, as a reader meets them."""
MARKS = {"nan": "✕ NaN", "infinite": "▲ infinite", "zero": "○ exactly zero"}


def panels_of(profile: Profile) -> list[Panel]:
    """Every panel for which something is known."""
    axis = axis_of(profile)
    made = [
        forward_panel(profile, axis),
        backward_panel(profile, axis),
        branch_panel(profile, axis),
        _weights(profile, axis),
        _updates(profile, axis),
        _likeness(profile, axis),
        _attention(profile, axis),
        _units(profile, axis),
    ]
    return [_with_marks(panel) for panel in made if panel.series]


def _weights(profile: Profile, axis: Axis) -> Panel:
    rows: dict[str, dict[int, list[float]]] = {}
    for weight in profile.facts.weights if profile.facts is not None else ():
        if weight.grad_ms is not None:
            rows.setdefault(_kind(weight), {}).setdefault(weight.block, []).append(weight.grad_ms)
    series = tuple(
        Series(
            label=kind,
            values=axis.spread({block: sum(each) / len(each) for block, each in rows[kind].items()}),
            tone=tone if len(rows) > 1 else "main",
            sparse=True,
        )
        for kind, tone in KINDS_OF_WEIGHT.items()
        if kind in rows
    )
    return Panel(
        key="weights", title="Gradient of weights", unit="mean square, by kind of weight", series=series
    )


def _kind(weight: Weight) -> str:
    if weight.role:
        return weight.role
    if not weight.residual:
        return "outside of branches"
    return "end of a branch" if weight.last else "in a branch"


def _updates(profile: Profile, axis: Axis) -> Panel:
    update = profile.update
    ratios = {
        (each.stream, each.name): each.update_norm / each.weight_norm
        for each in (update.blocks if update is not None else ())
        if each.weight_norm
    }
    by_block = {i: ratios.get((each.stream, each.name)) for i, each in enumerate(profile.blocks)}
    series = (Series(label="update / weight", values=axis.spread(by_block)),) if ratios else ()
    optimizer = "" if update is None else f", {clean(update.optimizer)}"
    return Panel(
        key="updates",
        title="One step",
        unit=f"length of the update / length of the weights{optimizer}",
        series=series,
        notes=span(axis.spread(by_block)),
    )


def _likeness(profile: Profile, axis: Axis) -> Panel:
    alike = {i: each.likeness for i, each in enumerate(profile.blocks)}
    series = (Series(label="likeness", values=axis.spread(alike)),) if is_known(alike) else ()
    return Panel(
        key="likeness",
        title="Likeness of samples",
        unit="mean correlation behind each block; 1: all are the same",
        kind="share",
        series=series,
    )


def _attention(profile: Profile, axis: Axis) -> Panel:
    found = profile.facts.attentions if profile.facts is not None else ()
    purity = {each.block: each.purity for each in found}
    even = {each.block: each.uniform for each in found}
    series = (
        Series(label="measured", values=axis.spread(purity), sparse=True),
        Series(label="if spread evenly", values=axis.spread(even), tone="theory", sparse=True),
    )
    return Panel(
        key="attention",
        title="Attention",
        unit="mean Σp² of a query: 1 if one key gets all",
        series=series if found else (),
    )


def _units(profile: Profile, axis: Axis) -> Panel:
    dead = {i: _part(each, "dead") for i, each in enumerate(profile.blocks)}
    saturated = {i: _part(each, "saturated") for i, each in enumerate(profile.blocks)}
    rows = ((dead, "dead", "main"), (saturated, "saturated", "third"))
    series = tuple(
        Series(label=label, values=axis.spread(row), tone=tone, sparse=True)
        for row, label, tone in rows
        if is_known(row)
    )
    return Panel(
        key="units",
        title="Dead and saturated units",
        unit="share of each block's units, over the whole batch",
        kind="share",
        series=series,
    )


def _part(block: Block, field: str) -> float | None:
    units = block.units
    amount = None if units is None or not units.count else getattr(units, field)
    return None if amount is None or units is None else amount / units.count


def _with_marks(panel: Panel) -> Panel:
    """The panel with the meaning of each mark that it needs, and how many blocks have it."""
    main = panel.series[0].values
    counts = {name: sum(marked(value, panel.kind) == name for value in main) for name in MARKS}
    said = tuple(f"{MARKS[name]} in {plural(amount, 'block')}" for name, amount in counts.items() if amount)
    return replace(panel, notes=(*panel.notes, *said))
