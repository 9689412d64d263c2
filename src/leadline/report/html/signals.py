"""The panels of the signal: forward and backward second moment with theory beside them, and branch against skip."""

from __future__ import annotations

from leadline.drawing.numbers import factor, plural
from leadline.records import Parting, Profile
from leadline.report.depth import gains
from leadline.report.html.panel import Axis, Panel, Series, is_known, span
from leadline.report.text import clean


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
