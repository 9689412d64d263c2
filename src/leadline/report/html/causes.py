"""The chain rule as a waterfall, and one step with its limits, as pictures."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from leadline.records import DepthBlock, DepthRange, DepthScale, Factor, Profile, Rehearsal, Update
from leadline.report.charts.bars import Bar, Mark, bars, ruler, waterfall
from leadline.report.charts.lines import Line, line_chart
from leadline.report.layout import shorten
from leadline.text import clean, factor, number, plural, power, share, signed

TITLES = {
    "activation": "activation slopes",
    "weight": "weights",
    "norm": "norms",
    "attention": "attention",
    "product": "products",
    "skip": "skips",
    "branch": "branches",
    "scale": "scales, biases",
    "pool": "pooling",
    "loss": "loss",
    "rest": "other ops",
}
LEFT_OVER = 1e-3  # e-folds: rounding of the stored logarithms stays far below (derived: 1e-15 a factor)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """What one kind of op did over the whole axis, in e-folds."""

    kind: str
    ops: int
    backward: float
    theory: float | None
    strongest: str
    """The block in which it did most, and how much."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """The causes of one stream, what they sum to, and what was measured."""

    stream: int
    causes: tuple[Cause, ...]
    total: float
    measured: float | None
    first: str
    last: str

    @property
    def unexplained(self) -> float | None:
        """What was measured and no factor accounts for; None where there is nothing to speak of."""
        left = None if self.measured is None else self.measured - self.total
        return left if left is not None and abs(left) > LEFT_OVER else None


def splits_of(profile: Profile) -> list[Split]:
    """One a stream whose gradient was attributed."""
    found = [_split(profile, index) for index in range(len(profile.streams))]
    return [split for split in found if split is not None]


def _split(profile: Profile, stream: int) -> Split | None:
    """From behind the last block of the stream to behind its first, so over the blocks after the first."""
    inside = [i for i, block in enumerate(profile.blocks) if block.stream == stream]
    if profile.attribution is None or len(inside) < 2:
        return None
    factors = [each for each in profile.attribution.within(inside[1:]) if each.backward is not None]
    finite = [each for each in factors if math.isfinite(each.backward or 0.0)]
    if not finite or len(finite) < len(factors):
        return None
    causes = tuple(_cause(kind, finite, profile.blocks) for kind in _kinds(finite))
    return Split(
        stream=stream,
        causes=causes,
        total=sum(cause.backward for cause in causes),
        measured=_change(profile.blocks[inside[0]], profile.blocks[inside[-1]]),
        first=profile.blocks[inside[0]].name,
        last=profile.blocks[inside[-1]].name,
    )


def _kinds(factors: Iterable[Factor]) -> list[str]:
    """Those that did most first; what is left over last."""
    sums: dict[str, float] = {}
    for each in factors:
        sums[each.kind] = sums.get(each.kind, 0.0) + (each.backward or 0.0)
    return sorted(sums, key=lambda kind: (kind == "rest", -abs(sums[kind])))


def _cause(kind: str, factors: Sequence[Factor], blocks: Sequence[DepthBlock]) -> Cause:
    mine = [each for each in factors if each.kind == kind]
    theory = [each.backward_theory for each in mine]
    most = max(mine, key=lambda each: abs(each.backward or 0.0))
    return Cause(
        kind=kind,
        ops=sum(each.ops for each in mine),
        backward=sum(each.backward or 0.0 for each in mine),
        theory=None if None in theory else sum(each or 0.0 for each in theory),
        strongest=f"{most.op or kind} in {blocks[most.block].name}, {power(most.backward or 0.0)}",
    )


def _change(first: DepthBlock, last: DepthBlock) -> float | None:
    r"""$\ln(G_{first} / G_{last})$ of the squared gradient, as measured behind the two blocks."""
    powers = [each.backward_ms * each.elements for each in (first, last) if each.backward_ms is not None]
    if len(powers) < 2 or not all(0 < each < math.inf for each in powers):
        return None
    return math.log(powers[0]) - math.log(powers[1])


def drawn(split: Split) -> str:
    """The waterfall as SVG."""
    parts = [_part(cause) for cause in split.causes]
    if split.unexplained is not None:
        parts.append(Bar(label="not attributed", value=split.unexplained, said=power(split.unexplained)))
    total = split.total if split.measured is None else split.measured
    whole = Bar(label="in all", value=total, said=power(total), tone="total")
    return waterfall(parts, whole, label="Change of the squared gradient from loss to input, by kind of op")


def _part(cause: Cause) -> Bar:
    said = power(cause.backward)
    a_time = factor(math.exp(cause.backward / cause.ops)) if cause.ops > 1 else ""
    each = f", {a_time} each" if a_time else ""
    return Bar(
        label=TITLES[cause.kind],
        value=cause.backward,
        said=said,
        theory=cause.theory,
        hint=f"{TITLES[cause.kind]}: {said} over {plural(cause.ops, 'op')}{each}; most by {cause.strongest}",
    )


# What one step does, and how far the rate and the depth are from their limits, as pictures.

NAME = 24  # characters of a range of blocks that a row has room for


def ranges_drawn(update: Update) -> str:
    """The change of the loss by range of depth, predicted and, where it was, measured; then of the whole step."""
    rows = [row for each in update.ranges for row in _range(each, update.predicted_loss_change)]
    rows.append(_bar("all, predicted", update.predicted_loss_change))
    rows.append(_bar("all, measured", update.measured_loss_change, tone="quiet-part"))
    return bars(rows, label="Change of the loss by one step, by range of depth, predicted and measured")


def _range(part: DepthRange, whole: float) -> list[Bar]:
    """What the gradient promises for these blocks, and what the loss does if they alone move."""
    if part.share is None:
        return []
    name = shorten(f"{clean(part.first)} … {clean(part.last)}", NAME)
    rows = [_bar(name, part.share * whole)]
    if part.loss_change is not None:
        rows.append(_bar("moved alone", part.loss_change, tone="quiet-part"))
    return rows


def _bar(label: str, value: float, tone: str = "part") -> Bar:
    return Bar(label=label, value=value, said=signed(value), tone=tone)


def step_facts(update: Update) -> list[tuple[str, str]]:
    """The step in numbers."""
    lasts = (
        "" if update.parting is None else f"{'≥ ' if update.parting_is_bound else ''}{number(update.parting)}"
    )
    relative = update.function_change_relative
    told = [
        ("optimiser", clean(update.optimizer)),
        ("loss before", number(update.loss)),
        ("change predicted", signed(update.predicted_loss_change)),
        ("change measured", signed(update.measured_loss_change)),
        ("measured / predicted", share(update.ratio) if update.ratio is not None else "hidden by rounding"),
        ("half is lost at", f"{lasts} × this step" if lasts else ""),
        ("outputs change by", "" if relative is None else f"{share(relative)} (rms)"),
    ]
    return [(name, value) for name, value in told if value]


def steps_drawn(rehearsal: Rehearsal) -> str:
    """The loss over the first steps on one batch, and dashed what the best constant output would reach."""
    lines = [Line(values=rehearsal.losses)]
    if rehearsal.constant is not None:
        constant = [rehearsal.constant] * len(rehearsal.losses)
        lines.append(Line(values=constant, tone="theory"))
    return line_chart(lines, label="Loss of the first steps on one batch", kind="linear", size=(430.0, 150.0))


def rates_drawn(update: Update) -> str:
    """The rate beside the safe rate and the limit of stability."""
    bound = "≥ " if update.safe_lr_is_bound else ""
    found = [
        ("your rate", update.lr, "", True),
        ("safe", update.safe_lr, bound, False),
        ("stability limit", update.stability_lr, "", False),
    ]
    marks = [
        Mark(label=label, value=value, said=f"{sign}{number(value)}", main=main)
        for label, value, sign, main in found
        if value is not None and 0 < value < math.inf
    ]
    return ruler(marks, label="Learning rate, its safe value and its limit of stability") if marks else ""


def depths_drawn(profile: Profile, scale: DepthScale) -> str:
    """How many blocks there are, beside how many theory says such a stack can have."""
    marks = [Mark(label="your depth", value=len(profile.blocks), said=str(len(profile.blocks)), main=True)]
    if 0 < scale.trainable_depth < math.inf:
        reach = max(scale.trainable_depth, 1.0)
        marks.append(Mark(label="trainable to about", value=reach, said=number(reach)))
    if 0 < scale.xi < math.inf:
        marks.append(Mark(label="depth scale ξ", value=scale.xi, said=number(scale.xi)))
    return ruler([each for each in marks if each.value > 0], label="Depth, and how deep such a stack can be")
