"""Charts over depth: the signal, its gradient, and every other quantity that has a value per block."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest

from leadline.records import DepthBlock, Finding, LimitLevel, Margin, Parting, Profile, Weight
from leadline.report.charts.lines import marked
from leadline.report.depth import gains
from leadline.report.page import Chart, DepthAxis, Limit, Profiles, Series, Stretch, Values
from leadline.report.verdict import by_severity
from leadline.text import factor, joined, plural, share

# Heuristic: empty places on the axis between two streams; one is enough to tell them apart.
STREAM_GAP = 1
# Heuristic: the used share of a limit from which on a chart has room for it; a limit that is farther away would flatten
# the line that it is drawn for.
MIN_USED_SHARE = 0.5
# Derived: e-folds; a larger factor overflows.
MAX_SHIFT = 700.0
# Heuristic: rows of brackets that leave most of a chart to its lines.
MAX_STRETCHES = 3

KINDS_OF_WEIGHT = {
    "query": "second",
    "key": "third",
    "value": "sixth",
    "in a branch": "main",
    "end of a branch": "fourth",
    "outside of branches": "fifth",
}
"""The tone of each kind of weight."""
CHART_KEYS = ("forward", "backward", "branches", "weights", "updates", "likeness", "attention", "units")
"""Keys of all charts, in reading order."""
PROMINENT = ("forward", "backward", "branches", "updates")
MARKS = {"nan": "✕ NaN", "infinite": "▲ infinite", "zero": "○ exactly zero"}


def profiles_of(
    profile: Profile, findings: Sequence[Finding] = (), margins: Sequence[Margin] = ()
) -> Profiles:
    """Every chart for which something is known, with the blocks that `findings` name and the limits of `margins`."""
    axis = axis_of(profile)
    known = [chart for chart in depth_charts(profile, axis) if chart.series]
    stretches = _stretches(findings, axis)
    charts = tuple(
        replace(_with_limits(_with_marks(chart), margins, profile, axis), stretches=stretches)
        for chart in known
        if not chart.is_empty
    )
    empty = ", ".join(chart.title.lower() for chart in known if chart.is_empty)
    hint = joined(
        plural(len(profile.blocks), "block"),
        "point at a chart" if charts else "",
        f"no finite value in: {empty}" if empty else "",
    )
    return Profiles(axis=axis, charts=charts, hint=hint)


def axis_of(profile: Profile) -> DepthAxis:
    """The depth axis of all streams, one after the other."""
    names: list[str] = []
    starts: list[tuple[int, str]] = []
    places = [0] * len(profile.blocks)
    for index, stream in enumerate(profile.streams):
        if names:
            names += [""] * STREAM_GAP
        starts.append((len(names), stream.input or "input"))
        for block, each in enumerate(profile.blocks):
            if each.stream == index:
                places[block] = len(names)
                names.append(each.name)
    for block, each in enumerate(profile.blocks):
        if not 0 <= each.stream < len(profile.streams):  # the record is damaged
            places[block] = len(names)
            names.append(each.name)
    return DepthAxis(names=tuple(names), starts=tuple(starts), places=tuple(places))


def depth_charts(profile: Profile, axis: DepthAxis) -> tuple[Chart, ...]:
    """All charts in reading order; without lines where nothing is known."""
    return (
        _forward(profile, axis),
        _backward(profile, axis),
        _branches(profile, axis),
        _weights(profile, axis),
        _updates(profile, axis),
        _likeness(profile, axis),
        _attention(profile, axis),
        _units(profile, axis),
    )


def _with_limits(chart: Chart, margins: Sequence[Margin], profile: Profile, axis: DepthAxis) -> Chart:
    """The chart with the limits of its quantity: as lines where the axis has room, otherwise in words."""
    for margin in margins:
        if margin.over_depth is None or margin.over_depth.quantity != chart.key or margin.used is None:
            continue
        if margin.used >= MIN_USED_SHARE or chart.kind == "share":
            limit = Limit(label=f"limit of {margin.code}", values=_levels(margin.over_depth, profile, axis))
            chart = replace(chart, limits=(*chart.limits, limit))
        else:
            chart = replace(
                chart, notes=(*chart.notes, f"{share(margin.used)} of the limit of {margin.code}")
            )
    return chart


def _levels(limit: LimitLevel, profile: Profile, axis: DepthAxis) -> tuple[float | None, ...]:
    """The limit at each place, in the unit of its chart: a sum of squares becomes a mean."""
    begin, end = limit.blocks
    way = range(begin, end + 1) if begin <= end else range(begin, end - 1, -1)
    levels: dict[int, float | None] = {}
    shift = 0.0
    is_of_one_stream = limit.quantity in {"forward", "backward"}
    for block in way:
        if is_of_one_stream and profile.blocks[block].stream != profile.blocks[begin].stream:
            continue
        shift += limit.cliffs.get(block, 0.0)
        size = profile.blocks[block].elements if limit.quantity == "backward" else 1
        levels[block] = limit.level * math.exp(min(shift, MAX_SHIFT)) / max(size, 1)
    return axis.spread(levels)


def _stretches(findings: Sequence[Finding], axis: DepthAxis) -> tuple[Stretch, ...]:
    """The blocks that root findings name, the worst first; findings about the same blocks share a bracket."""
    named: dict[tuple[int, int], list[Finding]] = {}
    for finding in by_severity(findings):
        if finding.layers is None or finding.explained_by or finding.severity == "info":
            continue
        places = [axis.places[block] for block in finding.layers if block < len(axis.places)]
        if places:
            named.setdefault((min(places), max(places)), []).append(finding)
    return tuple(
        Stretch(label=_names_of(group), first=first, last=last)
        for (first, last), group in [*named.items()][:MAX_STRETCHES]
    )


def _names_of(findings: Sequence[Finding]) -> str:
    """Code and name of one finding, the codes of several."""
    codes = [*dict.fromkeys(each.code for each in findings)]
    return f"{codes[0]} {findings[0].name}" if len(codes) == 1 else ", ".join(codes)


def _with_marks(chart: Chart) -> Chart:
    """The chart with the meaning of each mark that it needs, and the number of blocks that have it."""
    kinds = [marked(value, chart.kind) for value in chart.series[0].values]
    marks = tuple(
        f"{words} in {plural(kinds.count(kind), 'block')}" for kind, words in MARKS.items() if kind in kinds
    )
    return replace(chart, notes=(*chart.notes, *marks), prominent=chart.key in PROMINENT)


def _forward(profile: Profile, axis: DepthAxis) -> Chart:
    blocks = profile.shown.blocks
    series = _moments(profile, axis, "forward")
    branch = {i: each.residual.branch_ms for i, each in enumerate(blocks) if each.residual is not None}
    if _is_known(branch):
        series.append(Series(label="branch", values=axis.spread(branch), tone="second", sparse=True))
    return Chart(
        key="forward",
        title="Forward signal",
        unit="mean square after each block",
        series=tuple(series),
        notes=_signal_notes(profile, "forward"),
    )


def _backward(profile: Profile, axis: DepthAxis) -> Chart:
    return Chart(
        key="backward",
        title="Backward signal",
        unit="mean square of the loss gradient after each block",
        series=tuple(_moments(profile, axis, "backward")),
        notes=_signal_notes(profile, "backward"),
    )


def _moments(profile: Profile, axis: DepthAxis, direction: str) -> list[Series]:
    """Measurement and theory; for a model without weights, theory alone."""

    def pick(field: str) -> dict[int, float | None]:
        return {i: getattr(each, field) for i, each in enumerate(profile.blocks)}

    measured, predicted, band = pick(f"{direction}_ms"), pick(f"{direction}_ms_predicted"), pick("band")
    bands = axis.spread(band) if any(band.values()) else None
    if profile.predicted:
        return [Series(label="predicted", values=axis.spread(predicted), band=bands)]
    series = [Series(label="measured", values=axis.spread(measured))] if _is_known(measured) else []
    if _is_known(predicted):
        series.append(Series(label="theory", values=axis.spread(predicted), tone="theory", band=bands))
    return series


def _signal_notes(profile: Profile, direction: str) -> tuple[str, ...]:
    """The change per block of each stream, and where measurement first departs from theory."""
    place = 0 if direction == "forward" else 1
    towards = "" if direction == "forward" else " toward the input"
    notes = []
    for index, stream in enumerate(profile.streams):
        change = gains(profile, index)[place]
        if change is not None:
            name = f"{stream.input}: " if len(profile.streams) > 1 else ""
            notes.append(f"{name}{factor(change)} per block{towards}")
    if profile.theory is not None:
        parting = (profile.theory.forward_parting, profile.theory.backward_parting)[place]
        notes += [f"first departs from theory {departure(parting)}"] if parting is not None else []
    return (*notes, *_unpredicted(profile, direction))


def departure(parting: Parting) -> str:
    """Where measurement first departs from theory, and which assumption that contradicts."""
    where = f"{parting.name}{f' in {parting.module}' if parting.module else ''}"
    return f"at {where}: measured {factor(parting.factor)} of the prediction; theory assumes that {parting.assumption}"


def _unpredicted(profile: Profile, direction: str) -> tuple[str, ...]:
    """How many blocks have a band but no prediction, because the band was too wide to say anything."""
    rows = [(getattr(each, f"{direction}_ms_predicted"), each.band) for each in profile.blocks]
    silent = sum(predicted is None and band is not None for predicted, band in rows)
    some = any(predicted is not None for predicted, _ in rows)
    return (f"no theory in {plural(silent, 'block')}: its band is too wide there",) if silent and some else ()


def _branches(profile: Profile, axis: DepthAxis) -> Chart:
    ratio = {
        i: each.residual.branch_ms / each.residual.skip_ms
        for i, each in enumerate(profile.blocks)
        if each.residual is not None and each.residual.branch_ms is not None and each.residual.skip_ms
    }
    values = axis.spread(ratio)
    return Chart(
        key="branches",
        title="Branch against skip",
        unit="ratio of mean squares at each residual add",
        series=(Series(label="branch / skip", values=values, sparse=True),) if ratio else (),
        notes=_span(values),
    )


def _weights(profile: Profile, axis: DepthAxis) -> Chart:
    rows: dict[str, dict[int, list[float]]] = {}
    for weight in profile.facts.weights if profile.facts is not None else ():
        if weight.grad_ms is not None:
            rows.setdefault(kind_of_weight(weight), {}).setdefault(weight.block, []).append(weight.grad_ms)
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
    return Chart(
        key="weights", title="Gradient of weights", unit="mean square, by kind of weight", series=series
    )


def kind_of_weight(weight: Weight) -> str:
    """Its role in an attention, or its place in a residual branch: a key of `KINDS_OF_WEIGHT`."""
    if weight.role:
        return weight.role
    if not weight.residual:
        return "outside of branches"
    return "end of a branch" if weight.last else "in a branch"


def _updates(profile: Profile, axis: DepthAxis) -> Chart:
    update = profile.update
    ratios = {
        (each.stream, each.name): each.update_norm / each.weight_norm
        for each in (update.blocks if update is not None else ())
        if each.weight_norm
    }
    values = axis.spread({i: ratios.get((each.stream, each.name)) for i, each in enumerate(profile.blocks)})
    optimizer = "" if update is None else f", {update.optimizer}"
    return Chart(
        key="updates",
        title="One step",
        unit=f"norm of the update / norm of the weights{optimizer}",
        series=(Series(label="update / weight", values=values),) if ratios else (),
        notes=_span(values),
    )


def _likeness(profile: Profile, axis: DepthAxis) -> Chart:
    likeness = {i: each.likeness for i, each in enumerate(profile.blocks)}
    series = (Series(label="similarity", values=axis.spread(likeness)),) if _is_known(likeness) else ()
    return Chart(
        key="likeness",
        title="Similarity of samples",
        unit="mean correlation after each block; 1: all are the same",
        kind="share",
        series=series,
    )


def _attention(profile: Profile, axis: DepthAxis) -> Chart:
    attentions = profile.facts.attentions if profile.facts is not None else ()
    purity = axis.spread({each.block: each.purity for each in attentions})
    uniform = axis.spread({each.block: each.uniform for each in attentions})
    series = (
        Series(label="measured", values=purity, sparse=True),
        Series(label="if uniform", values=uniform, tone="theory", sparse=True),
    )
    return Chart(
        key="attention",
        title="Attention",
        unit="mean Σp² of a query; 1: one key gets all the attention",
        series=series if attentions else (),
    )


def _units(profile: Profile, axis: DepthAxis) -> Chart:
    dead = {i: _share_of_units(each, "dead") for i, each in enumerate(profile.blocks)}
    saturated = {i: _share_of_units(each, "saturated") for i, each in enumerate(profile.blocks)}
    rows = ((dead, "dead", "main"), (saturated, "saturated", "third"))
    series = tuple(
        Series(label=label, values=axis.spread(row), tone=tone, sparse=True)
        for row, label, tone in rows
        if _is_known(row)
    )
    return Chart(
        key="units",
        title="Dead and saturated units",
        unit="share of each block's units, over the whole batch",
        kind="share",
        series=series,
    )


def _share_of_units(block: DepthBlock, field: str) -> float | None:
    units = block.units
    if units is None or not units.count:
        return None
    amount: int | None = getattr(units, field)
    return None if amount is None else amount / units.count


def _is_known(values: Mapping[int, float | None]) -> bool:
    return any(value is not None for value in values.values())


def _span(values: Values) -> tuple[str, ...]:
    """The smallest and the largest factor, as a note; nothing if there are fewer than two."""
    positive = [value for value in values if value is not None and 0 < value < float("inf")]
    return (f"{factor(min(positive))} to {factor(max(positive))}",) if len(positive) > 1 else ()


# Two profiles over one axis: before and after a fix, or one report against another.


def overlay(first: Profile, second: Profile, labels: tuple[str, str]) -> Profiles:
    """The charts that either profile has, each with the main line of both, place by place in order of depth.

    Theory, limits and findings are left out: four lines and two bands in one chart would hide what changed.
    """
    here, there = ({chart.key: chart for chart in profiles_of(each).charts} for each in (first, second))
    axis = joint_axis(axis_of(first), axis_of(second))
    keys = [key for key in CHART_KEYS if key in here or key in there]
    charts = tuple(_both(here.get(key), there.get(key), labels, len(axis.names)) for key in keys)
    return Profiles(axis=axis, charts=charts, hint="point at a chart")


def joint_axis(first: DepthAxis, second: DepthAxis) -> DepthAxis:
    """The longer of the two axes; places whose names differ have both."""
    longer = first if len(first.names) >= len(second.names) else second
    pairs = zip_longest(first.names, second.names, fillvalue="")
    names = tuple(a if a == b or not b else f"{a} | {b}" if a else b for a, b in pairs)
    return replace(longer, names=names)


def _both(first: Chart | None, second: Chart | None, labels: tuple[str, str], length: int) -> Chart:
    charts = [
        (chart, label, tone)
        for chart, label, tone in zip((first, second), labels, ("second", "main"), strict=True)
        if chart is not None
    ]
    shown = charts[-1][0]
    common = _common_label([chart for chart, _, _ in charts])
    series = tuple(_padded(_main_series(chart, common), label, tone, length) for chart, label, tone in charts)
    notes = tuple(f"{label}: {chart.notes[0]}" for chart, label, _ in charts if chart.notes)
    kind = f", {common}" if shown.key == "weights" and common else ""
    return replace(shown, series=series, notes=notes, unit=f"{shown.unit}{kind}")


def _common_label(charts: Sequence[Chart]) -> str:
    """The first line that all of them have; "" if there is none."""
    labels = [[each.label for each in chart.series] for chart in charts]
    return next((label for label in labels[0] if all(label in each for each in labels)), "")


def _main_series(chart: Chart, common: str) -> Series:
    return next((each for each in chart.series if each.label == common), chart.series[0])


def _padded(series: Series, label: str, tone: str, length: int) -> Series:
    values = (*series.values, *[None] * (length - len(series.values)))
    return Series(label=label, values=values, tone=tone, sparse=series.sparse)
