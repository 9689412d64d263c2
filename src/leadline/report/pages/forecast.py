"""The page of a forecast: how deep the family goes, each quantity over depth, and what follows from it."""

from __future__ import annotations

import math
from collections.abc import Sequence

from leadline.records import DepthPoint, Exponent, Forecast
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
CHARTED = ("grad_square", "loss_change", "function_change")
# Derived: e^700 is the largest power of e that a float holds, about.
MAX_E_FOLDS = 700.0


def forecast_page(forecast: Forecast) -> Page:
    elements = forecast_elements(forecast)
    section = Section(
        key="law",
        title="Depth law and rate map",
        brief=(_exponent_table(forecast), _advice(forecast)),
        body=elements,
    )
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
            Fact(label="Depths", value=_depths(forecast), phrase=_depths_phrase(forecast), line="model"),
            Fact(
                label="Seeds",
                value=str(forecast.seeds),
                phrase=plural(forecast.seeds, "seed"),
                line="" if forecast.from_one_model else "model",
            ),
        ),
        sections=(section,),
        record=forecast,
    )


def forecast_title(forecast: Forecast) -> str:
    """The title and the sentence of a forecast, in one line."""
    sentence = _sentence(forecast)
    return f"{_title(forecast).words}{f': {sentence}' if sentence else ''}"


def _title(forecast: Forecast) -> Title:
    if forecast.undecided:
        return Title(words="UNDECIDED", tone="undecided")
    if forecast.max_depth is None:
        return Title(words="NO LIMIT IN SIGHT", tone="trains")
    tone = "poor" if forecast.max_depth <= forecast.depths[-1] else "undecided"
    return Title(words=f"TRAINS UP TO DEPTH {forecast.max_depth}", tone=tone)


def _sentence(forecast: Forecast) -> str:
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
