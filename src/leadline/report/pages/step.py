"""One optimizer step: what its gradient predicts, what the loss did, the first steps, and the safe learning rate."""

from __future__ import annotations

import math

from leadline.records import DepthRange, Outlook, Rehearsal, Update
from leadline.report.names import shorten_name
from leadline.report.page import (
    Bar,
    BarChart,
    Chart,
    Charts,
    Columns,
    Details,
    Element,
    Fact,
    FactList,
    Mark,
    Page,
    Ruler,
    Section,
    Series,
    Step,
    Title,
    facts,
)
from leadline.text import RANGE, joined, layer_label, number, on_batches, plural, share, signed

# Heuristic: characters of a range of blocks that a row of the bar chart has room for.
RANGE_CHARACTERS = 24


def update_page(update: Update) -> Page:
    """One step on its own: predicted and measured, and where on the depth axis it happens."""
    ratios = [each.update_norm / each.weight_norm if each.weight_norm else None for each in update.blocks]
    shares = [each.share for each in update.blocks]
    charts = (
        _block_chart("update / weight", ratios),
        _block_chart("share of the predicted change", shares, linear=True),
    )
    section = step_section(update, None)
    return Page(
        subject="one step",
        titles=(Title(words=f"One step of {update.optimizer}", tone="info"),),
        sentence=_loss_change(update),
        facts=facts(
            Fact(label="Measured / predicted", value=_kept_share(update)),
            Fact(label="Rate", value=_rate_words(update)),
            Fact(label="Confidence", value=update.confidence_why),
        ),
        sections=(
            Section(key="blocks", title="By block", body=(Charts(items=charts if update.blocks else ()),)),
            section,
        ),
        record=update,
    )


def _block_chart(title: str, values: list[float | None], *, linear: bool = False) -> Chart:
    return Chart(
        title=title,
        unit="by block",
        series=(Series(values=values),),
        kind="linear" if linear else "log",
        prominent=True,
    )


def step_section(update: Update | None, rehearsal: Rehearsal | None) -> Section:
    """What one step does, and what the first steps on the batch did; empty if nothing was measured."""
    return Section(
        key="step",
        title="One step of the optimizer",
        link="One step",
        lead="What the gradient predicts, ΔL = ⟨g, Δθ⟩, by range of depth (blue), and what the loss did when only that "
        "range was moved (gray). One batch, with the same random numbers before and after; the step was undone.",
        brief=(facts(*_rehearsal_facts(rehearsal)), *_folded_step(update)),
        body=() if update is None else _body(update, rehearsal),
    )


def outlook_section(outlook: Outlook | None) -> Section:
    """The probability that the training works, and what each quantity of the first steps adds to its log odds."""
    if outlook is None:
        return Section(key="outlook", title="Chance that it trains")
    rows = [_bar(f"{term.name} {term.value:.2g}", term.log_odds) for term in outlook.terms]
    bias = _bar("before anything is known", outlook.bias, quiet=True)
    words = [f"{term.name} {term.value:.2g} ({term.log_odds:+.1f})" for term in outlook.terms]
    fact = Fact(label="Chance", value=f"{share(outlook.probability)}: {', '.join(words)}", line="chance")
    return Section(
        key="outlook",
        title="Chance that it trains",
        link="Chance",
        lead=f"{share(outlook.probability)} of trainings that begin like this one reached most of what a healthy "
        "network of their kind reaches. Each bar is what a quantity adds to the logarithm of the odds.",
        brief=(Details(title="Chance that it trains", items=(facts(fact),)),),
        body=(BarChart(rows=(bias, *rows), label="Parts of the log odds that the training works"),),
    )


def _rehearsal_facts(rehearsal: Rehearsal | None) -> list[Fact]:
    if rehearsal is None or not rehearsal.steps:
        return []
    losses = f"loss {number(rehearsal.first)} to {number(rehearsal.last)}"
    constant = "" if rehearsal.constant is None else f"a constant output gives {number(rehearsal.constant)}"
    words = joined(
        f"{plural(rehearsal.steps, 'step')} {on_batches(rehearsal.batches, is_split=rehearsal.is_split)}: {losses}",
        constant,
    )
    return [Fact(label="First steps", value=words, line="training")]


def _folded_step(update: Update | None) -> tuple[Details, ...]:
    """What one step does, on demand."""
    if update is None:
        return ()
    words = joined(_loss_change(update), _kept_share(update), _rate_words(update))
    shares = ", ".join(share(each.share) for each in update.ranges if each.share is not None)
    rows = (
        Fact(label="One step", value=words, line="one step"),
        Fact(
            label="By depth",
            value=f"{shares} of the prediction, by quarter of the depth" if shares else "",
            line="by depth",
        ),
    )
    return (Details(title="One step of the optimizer", items=(facts(*rows),)),)


def _loss_change(update: Update) -> str:
    predicted, measured = signed(update.predicted_loss_change), signed(update.measured_loss_change)
    return f"loss {predicted} predicted, {measured} measured"


def _kept_share(update: Update) -> str:
    return "" if update.ratio is None else f"{share(update.ratio)} of the prediction"


def _rate_words(update: Update) -> str:
    if update.safe_lr is None:
        return ""
    return f"rate {number(update.lr)}, safe rate {_safe_rate(update)}"


def _safe_rate(update: Update) -> str:
    return f"{'≥ ' if update.safe_lr_is_bound else ''}{number(update.safe_lr)}"


def _body(update: Update, rehearsal: Rehearsal | None) -> tuple[Element, ...]:
    right: list[Element] = [_step_facts(update)]
    if rehearsal is not None:
        right.append(rehearsal_chart(rehearsal))
    return (Columns(left=(loss_change_chart(update),), right=tuple(right)),)


def loss_change_chart(update: Update) -> BarChart:
    """The change of the loss by range of depth, predicted and, where it was, measured; then of the whole step."""
    rows = [row for each in update.ranges for row in _range_bars(each, update.predicted_loss_change)]
    rows.append(_bar("all, predicted", update.predicted_loss_change))
    rows.append(_bar("all, measured", update.measured_loss_change, quiet=True))
    label = "Change of the loss by one step, by range of depth, predicted and measured"
    return BarChart(label=label, rows=tuple(rows))


def _range_bars(part: DepthRange, whole: float) -> list[Bar]:
    """What the gradient predicts for these blocks, and what the loss does if only they move."""
    if part.share is None:
        return []
    rows = [_bar(_range_label(part), part.share * whole)]
    if part.loss_change is not None:
        rows.append(_bar("moved alone", part.loss_change, quiet=True))
    return rows


def _range_label(part: DepthRange) -> str:
    return layer_label(shorten_name(f"{part.first}{RANGE}{part.last}", RANGE_CHARACTERS))


def _bar(label: str, value: float, *, quiet: bool = False) -> Bar:
    return Bar(label=label, value=value, amount=signed(value), tone="quiet-part" if quiet else "part")


def _step_facts(update: Update) -> FactList:
    multiple = ""
    if update.parting is not None:
        multiple = f"{'≥ ' if update.parting_is_bound else ''}{number(update.parting)} × this step"
    relative = update.function_change_relative
    ratio = share(update.ratio) if update.ratio is not None else "hidden by rounding"
    return facts(
        Fact(label="Optimizer", value=update.optimizer),
        Fact(label="Loss before", value=number(update.loss)),
        Fact(label="Change predicted", value=signed(update.predicted_loss_change)),
        Fact(label="Change measured", value=signed(update.measured_loss_change)),
        Fact(label="Measured / predicted", value=ratio),
        Fact(label="Half of it is lost at", value=multiple),
        Fact(label="Outputs change by", value="" if relative is None else f"{share(relative)} (rms)"),
    )


def rehearsal_chart(rehearsal: Rehearsal) -> Chart:
    """The loss over the first steps, and dashed the loss of the best constant output."""
    series = [Series(values=rehearsal.losses, label="loss")]
    if rehearsal.constant is not None:
        constant = [rehearsal.constant] * len(rehearsal.losses)
        series.append(Series(values=constant, label="best constant output", tone="theory"))
    return Chart(
        title=f"The first {rehearsal.steps} steps {on_batches(rehearsal.batches, is_split=rehearsal.is_split)}",
        unit="loss; dashed: the best constant output",
        series=tuple(series),
        kind="linear",
    )


def rate_ruler(update: Update) -> Ruler | None:
    """The learning rate, the safe rate and the stability limit on one axis; None if none is known."""
    rates = [
        ("your rate", update.lr, number(update.lr)),
        ("safe", update.safe_lr, _safe_rate(update)),
        ("stability limit", update.stability_lr, number(update.stability_lr)),
    ]
    marks = tuple(
        Mark(label=label, value=value, amount=amount, main=label == "your rate")
        for label, value, amount in rates
        if value is not None and 0 < value < math.inf
    )
    bound = ", at least up to the largest rate that was tried" if update.safe_lr_is_bound else ""
    note = (
        f"Safe: one step still gives half of what its gradient predicts{bound}. Stability limit: above it, steps along "
        f"the sharpest direction that was seen grow ({update.confidence} confidence: {update.confidence_why})."
    )
    label = "Learning rate, its safe value and its stability limit"
    return Ruler(title="Learning rate", label=label, marks=marks, note=note) if marks else None


def rate_advice(update: Update | None) -> list[Step]:
    """A lower rate or a warm-up, if one step at the present rate loses more than half of its prediction."""
    if update is None or update.safe_lr is None or update.lr is None:
        return []
    if update.safe_lr_is_bound or update.safe_lr >= update.lr:
        return []
    safe = number(update.safe_lr)
    warmup = f", or warm up over {update.warmup_steps} steps" if update.warmup_steps else ""
    return [
        Step(
            title=f"Lower the learning rate from {number(update.lr)} to {safe}{warmup}",
            cost="changes the training",
            why=f"Above {safe}, one step loses half of what its gradient predicts ({update.confidence} confidence: "
            f"{update.confidence_why}).",
        )
    ]
