"""The depth profiles of a report as panels."""

from __future__ import annotations

from dataclasses import replace

from leadline.records import DepthBlock, Parting, Profile, Weight
from leadline.report.charts.lines import marked
from leadline.report.depth import gains
from leadline.report.html.panel import Axis, Panel, Series, axis_of, is_known, span
from leadline.text import clean, factor, plural


def forward_panel(profile: Profile, axis: Axis) -> Panel:
    blocks = profile.shown.blocks
    series = _moments(profile, axis, "forward")
    branch = {i: each.residual.branch_ms for i, each in enumerate(blocks) if each.residual is not None}
    if any(value is not None for value in branch.values()):
        series.append(Series(label="branch", values=axis.spread(branch), tone="second", sparse=True))
    return Panel(
        key="forward",
        title="Forward signal",
        unit="mean square behind each block",
        series=tuple(series),
        notes=_signal_notes(profile, "forward"),
    )


def backward_panel(profile: Profile, axis: Axis) -> Panel:
    return Panel(
        key="backward",
        title="Backward signal",
        unit="mean square of the loss gradient behind each block",
        series=tuple(_moments(profile, axis, "backward")),
        notes=_signal_notes(profile, "backward"),
    )


def _moments(profile: Profile, axis: Axis, direction: str) -> list[Series]:
    """What was measured with theory beside it; of a model without weights, theory alone."""

    def pick(field: str) -> dict[int, float | None]:
        return {i: getattr(each, field) for i, each in enumerate(profile.blocks)}

    measured, predicted, band = pick(f"{direction}_ms"), pick(f"{direction}_ms_predicted"), pick("band")
    bands = axis.spread(band) if any(band.values()) else None
    if profile.predicted:
        return [Series(label="predicted", values=axis.spread(predicted), band=bands)]
    found = [Series(label="measured", values=axis.spread(measured))] if is_known(measured) else []
    if is_known(predicted):
        found.append(Series(label="theory", values=axis.spread(predicted), tone="theory", band=bands))
    return found


def _signal_notes(profile: Profile, direction: str) -> tuple[str, ...]:
    """The change a block of each stream, and where theory and measurement part first."""
    place = 0 if direction == "forward" else 1
    several = len(profile.streams) > 1
    towards = "" if direction == "forward" else " towards the input"
    notes = []
    for index, stream in enumerate(profile.streams):
        change = gains(profile, index)[place]
        if change is not None:
            of = f"{clean(stream.input)}: " if several else ""
            notes.append(f"{of}{factor(change)} a block{towards}")
    if profile.theory is not None:
        found = profile.theory.forward_parting if place == 0 else profile.theory.backward_parting
        notes += [_parts(found)] if found is not None else []
    return (*notes, *_unpredicted(profile, direction))


def _unpredicted(profile: Profile, direction: str) -> tuple[str, ...]:
    """How many blocks have a band and no prediction: it was too wide to say anything."""
    rows = [(getattr(each, f"{direction}_ms_predicted"), each.band) for each in profile.blocks]
    silent = sum(predicted is None and band is not None for predicted, band in rows)
    some = any(predicted is not None for predicted, _ in rows)
    return (f"no theory in {plural(silent, 'block')}: its band is too wide there",) if silent and some else ()


def _parts(parting: Parting) -> str:
    where = f" in {clean(parting.module)}" if parting.module else ""
    said = f"parts from theory first at {clean(parting.name)}{where}, {factor(parting.factor)} of it"
    return f"{said}; theory assumes that {clean(parting.assumption)}"


def branch_panel(profile: Profile, axis: Axis) -> Panel:
    ratio = {
        i: each.residual.branch_ms / each.residual.skip_ms
        for i, each in enumerate(profile.blocks)
        if each.residual is not None and each.residual.branch_ms is not None and each.residual.skip_ms
    }
    series = (Series(label="branch / skip", values=axis.spread(ratio), sparse=True),) if ratio else ()
    return Panel(
        key="branches",
        title="Branch against skip",
        unit="ratio of mean squares at each residual add",
        series=series,
        notes=span(axis.spread(ratio)),
    )


# The depth profiles of a report as panels: what is drawn over depth, on which axis, and what is said above it.

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


def _part(block: DepthBlock, field: str) -> float | None:
    units = block.units
    amount = None if units is None or not units.count else getattr(units, field)
    return None if amount is None or units is None else amount / units.count


def _with_marks(panel: Panel) -> Panel:
    """The panel with the meaning of each mark that it needs, and how many blocks have it."""
    main = panel.series[0].values
    counts = {name: sum(marked(value, panel.kind) == name for value in main) for name in MARKS}
    said = tuple(f"{MARKS[name]} in {plural(amount, 'block')}" for name, amount in counts.items() if amount)
    return replace(panel, notes=(*panel.notes, *said))
