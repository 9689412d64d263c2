"""What one step does, and how far the rate and the depth are from their limits, as pictures."""

from __future__ import annotations

import math

from leadline.drawing.bars import Bar, bars
from leadline.drawing.chart import Line, line_chart
from leadline.drawing.numbers import number, share, signed
from leadline.drawing.ruler import Mark, ruler
from leadline.records import DepthRange, DepthScale, Profile, Rehearsal, Update
from leadline.report.text import clean, shorten

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
