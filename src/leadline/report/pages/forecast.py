"""The page of a forecast: how deep the family goes, each quantity over depth, width or batch, and what follows."""

from __future__ import annotations

import math
from collections.abc import Sequence

from leadline.records import AxisLaw, DepthPoint, Exponent, Forecast, ScalingRule
from leadline.report.page import (
    Chart,
    Charts,
    Column,
    Element,
    Fact,
    Page,
    Section,
    Series,
    Spark,
    Step,
    Steps,
    Table,
    Title,
    facts,
)
from leadline.text import growth, number, plural

QUANTITIES = {
    "grad_square": "squared gradient",
    "loss_change": "predicted fall of the loss",
    "function_change": "change of the function",
    "total_function_change": "… with embedding and head",
    "linear_range": "steps until half is lost",
    "forward_growth": "growth forward",
    "backward_growth": "growth backward",
}
"""Rows of the table, by their name in `Forecast.exponents`."""
LAW_QUANTITIES = {
    "function_change": "change of the function",
    "blocks_change": "… by the blocks alone",
    "safe_rate": "safe rate",
    "grad_square": "squared gradient",
    "update_norm": "norm of the step",
}
"""Rows of the table of a law along width or batch, by their name in `AxisLaw.exponents`."""
LAW_FIELDS = {"safe_rate": "safe_lr"}
CHARTED = ("grad_square", "loss_change", "function_change")
# Derived: e^700 is the largest power of e that a float holds, about.
MAX_E_FOLDS = 700.0


def forecast_page(forecast: Forecast) -> Page:
    sections = [_law_section(law) for law in forecast.laws]
    if forecast.varies_depth or not sections:
        depth_section = Section(
            key="law",
            title="Depth law and rate map",
            brief=(_exponent_table(forecast), _advice(forecast)),
            body=forecast_elements(forecast),
        )
        sections.insert(0, depth_section)
    return Page(
        subject=forecast.model,
        titles=(_title(forecast),),
        sentence=_sentence(forecast),
        facts=facts(
            Fact(label="Model", value=forecast.model, line="model", is_name=True),
            Fact(label="Optimizer", value=forecast.optimizer, line="model"),
            Fact(
                label="Rate",
                value="" if forecast.lr is None else number(forecast.lr),
                phrase=f"rate {number(forecast.lr)}",
                line="model",
            ),
            Fact(
                label="Depths" if forecast.varies_depth else "Blocks",
                value=_depths(forecast),
                phrase=_depths_phrase(forecast),
                line="model",
            ),
            Fact(
                label="Seeds",
                value=str(forecast.seeds),
                phrase=plural(forecast.seeds, "seed"),
                line="" if forecast.from_one_model else "model",
            ),
        ),
        sections=(*sections, *_duration_sections(forecast)),
        record=forecast,
    )


def forecast_title(forecast: Forecast) -> str:
    """The title and the sentence of a forecast, in one line."""
    sentence = _sentence(forecast)
    return f"{_title(forecast).words}{f': {sentence}' if sentence else ''}"


def _title(forecast: Forecast) -> Title:
    if forecast.undecided:
        return Title(words="UNDECIDED", tone="undecided")
    if not forecast.varies_depth and forecast.laws:
        axes = " AND ".join(law.axis.upper() for law in forecast.laws)
        return Title(words=f"LAW OF {axes}", tone="trains")
    if forecast.max_depth is None:
        return Title(words="NO LIMIT IN SIGHT", tone="trains")
    tone = "poor" if forecast.max_depth <= forecast.depths[-1] else "undecided"
    return Title(words=f"TRAINS UP TO DEPTH {forecast.max_depth}", tone=tone)


def _sentence(forecast: Forecast) -> str:
    if not forecast.varies_depth and forecast.laws:
        return next((law.advice[0] for law in forecast.laws if law.advice), "")
    low, high = forecast.max_depth_low, forecast.max_depth_high
    interval = _interval(low, high)
    if forecast.undecided:
        words = [
            f"the limit lies between depth {number(low)} and {number(high)} (95 %); use more seeds or depths"
        ]
    elif forecast.max_depth is None:
        words = [f"up to depth {forecast.depths[-1]}"]
    else:
        words = [f"95 %: {interval}"] if interval else []
    if forecast.safe_depth is not None and forecast.safe_depth != forecast.max_depth:
        words.append(f"beyond {forecast.safe_depth} with a warm-up")
    return "; ".join(words)


def _depths(forecast: Forecast) -> str:
    return ", ".join(map(str, forecast.depths))


def _depths_phrase(forecast: Forecast) -> str:
    if forecast.from_one_model:
        return f"extrapolated from {plural(forecast.depths[-1], 'block')} of one model"
    if not forecast.varies_depth:
        return plural(forecast.depths[-1], "block")
    return f"depths {_depths(forecast)}"


def forecast_elements(forecast: Forecast) -> tuple[Element, ...]:
    """What follows, the map of depth and rate, each quantity over depth, and the limits."""
    charts = (_rate_chart(forecast), *(_quantity_chart(forecast, name) for name in CHARTED))
    limits = _limit_table(forecast)
    return (
        _advice(forecast),
        Charts(items=tuple(chart for chart in charts if chart is not None)),
        *((limits,) if limits.rows else ()),
    )


def _advice(forecast: Forecast) -> Steps:
    return Steps(items=tuple(Step(title=each) for each in forecast.advice))


def _limit_table(forecast: Forecast) -> Table:
    columns = (
        Column(title="limit"),
        Column(title="depth", kind="number"),
        Column(title="95 %", kind="number"),
        Column(title="why"),
    )
    rows = tuple(
        (
            f"{each.cause}{', extrapolated' if each.extrapolated else ''}",
            number(each.depth),
            _interval(each.low, each.high),
            each.message,
        )
        for each in forecast.limits
    )
    return Table(columns=columns, rows=rows)


def _interval(low: float | None, high: float | None) -> str:
    return "" if low is None or high is None else f"{number(low)} to {number(high)}"


def _exponent_table(forecast: Forecast) -> Table:
    columns = (
        Column(title="quantity"),
        Column(title="over depth", kind="spark"),
        Column(title="first", kind="number"),
        Column(title="last", kind="number"),
        Column(title="~ depth^", kind="number"),
    )
    rows = []
    for name, label in QUANTITIES.items():
        if name in forecast.exponents:
            values = _over_depth(forecast, name)
            first = number(values[0]) if len(values) > 1 else ""
            exponent = _exponent_words(forecast.exponents[name])
            rows.append((label, Spark(values=values), first, number(values[-1]), exponent))
    return Table(columns=columns, rows=tuple(rows))


def _exponent_words(exponent: Exponent) -> str:
    if exponent.low is None or exponent.high is None:
        return f"{exponent.value:+.2f}"
    return f"{exponent.value:+.2f} ± {(exponent.high - exponent.low) / 2:.2f}"


def _over_depth(forecast: Forecast, name: str) -> list[float | None]:
    return [
        _mean([_value(point, name) for point in forecast.points if point.depth == depth])
        for depth in forecast.depths
    ]


def _value(point: DepthPoint, name: str) -> float | None:
    if name == "linear_range":
        return point.parting
    if name in ("forward_growth", "backward_growth"):
        folds = point.forward_e_folds if name == "forward_growth" else point.backward_e_folds
        return None if folds is None else math.exp(min(folds, MAX_E_FOLDS))
    value: float | None = getattr(point, name)
    return -value if value is not None and name.endswith("loss_change") else value


def _mean(values: Sequence[float | None]) -> float | None:
    """Geometric mean over seeds; the first value if none has a logarithm."""
    logs = [math.log(value) for value in values if value is not None and 0 < value < math.inf]
    return growth(sum(logs) / len(logs)) if logs else next(iter(values), None)


def _rate_chart(forecast: Forecast) -> Chart | None:
    """Below the line one step keeps at least half of what its gradient predicts; dashed: the present rate."""
    lr = forecast.lr
    multiples = _over_depth(forecast, "linear_range")
    if lr is None or not any(multiples):
        return None
    safe = [None if each is None else lr * each for each in multiples]
    return Chart(
        title="Safe rate over depth",
        unit=f"dashed: the rate {number(lr)}",
        series=(
            Series(values=safe, label="safe"),
            Series(values=[lr] * len(safe), label="yours", tone="theory"),
        ),
        names=tuple(map(str, forecast.depths)),
        prominent=True,
    )


def _quantity_chart(forecast: Forecast, name: str) -> Chart | None:
    values = _over_depth(forecast, name)
    if not any(value is not None for value in values):
        return None
    exponent = forecast.exponents.get(name)
    return Chart(
        title=QUANTITIES[name],
        unit="" if exponent is None else f"~ depth^{exponent.value:+.2f}",
        series=(Series(values=values),),
        names=tuple(map(str, forecast.depths)),
        prominent=True,
    )


# Width and batch: one section each, with the law beside the measurement.


def _law_section(law: AxisLaw) -> Section:
    base = ", ".join(f"{axis} {value}" for axis, value in law.base.items())
    steps = Steps(items=tuple(Step(title=each) for each in law.advice))
    charts = [chart for name in LAW_QUANTITIES if (chart := _law_chart(law, name)) is not None]
    quantities = _quantity_table(law)
    unmet = [rule for rule in law.rules if rule.power]
    tables = (quantities, *_rule_tables(law, law.rules))
    return Section(
        key=law.axis,
        title=f"Law of {law.axis}" + (f" (at {base})" if base else ""),
        link=f"Law of {law.axis}",
        brief=(quantities, *_rule_tables(law, unmet), steps),
        verbose=(*tables, steps),
        body=(steps, Charts(items=tuple(charts)), *tables),
    )


def _quantity_table(law: AxisLaw) -> Table:
    columns = (
        Column(title="quantity"),
        Column(title=f"over {law.axis}", kind="spark"),
        Column(title=str(law.values[0]), kind="number"),
        Column(title=str(law.values[-1]), kind="number"),
        Column(title=f"~ {law.axis}^", kind="number"),
    )
    rows = []
    for name, label in LAW_QUANTITIES.items():
        if name in law.exponents:
            values = _over_axis(law, name)
            exponent = _exponent_words(law.exponents[name])
            rows.append((label, Spark(values=values), number(values[0]), number(values[-1]), exponent))
    return Table(columns=columns, rows=tuple(rows))


def _rule_tables(law: AxisLaw, rules: Sequence[ScalingRule]) -> tuple[Table, ...]:
    """Each setting: the power that it has, the one that theory wants, and what to multiply it by."""
    if not rules:
        return ()
    columns = (
        Column(title="setting"),
        Column(title="now", kind="number"),
        Column(title="wanted", kind="number"),
        Column(title=f"multiply by {law.axis}^", kind="number"),
        Column(title="source", optional=True),
    )
    return (Table(columns=columns, rows=tuple(_rule_row(rule) for rule in rules)),)


def _rule_row(rule: ScalingRule) -> tuple[str, str, str, str, str]:
    return (
        rule.setting,
        "" if rule.now is None else _exponent_words(rule.now),
        "law" if rule.wanted is None else f"{rule.wanted:+.2f}",
        f"{rule.power:+.2f}" if rule.power else "keep",
        f"{rule.reason}: {rule.source}",
    )


def _over_axis(law: AxisLaw, name: str) -> list[float | None]:
    field = LAW_FIELDS.get(name, name)
    return [
        _mean([getattr(point, field) for point in law.points if point.value == value]) for value in law.values
    ]


def _law_chart(law: AxisLaw, name: str) -> Chart | None:
    values = _over_axis(law, name)
    if name not in law.exponents or not any(value is not None for value in values):
        return None
    return Chart(
        title=f"{LAW_QUANTITIES[name]} over {law.axis}",
        unit=f"~ {law.axis}^{law.exponents[name].value:+.2f}",
        series=(Series(values=values),),
        names=tuple(map(str, law.values)),
        prominent=True,
    )


def _duration_sections(forecast: Forecast) -> tuple[Section, ...]:
    memory = forecast.decay_memory
    if memory is None:
        return ()
    steps = Steps(items=tuple(Step(title=each) for each in memory.advice))
    return (Section(key="duration", title="Length of the run", brief=(steps,), body=(steps,)),)
