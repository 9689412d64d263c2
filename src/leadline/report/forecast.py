"""A forecast as a page for the terminal: a line a quantity, drawn over depth, then what follows from it."""

from __future__ import annotations

import math
from io import StringIO
from typing import Literal

from rich.console import Console
from rich.text import Text

from leadline.records import DepthPoint, Exponent, Forecast
from leadline.report.depth import sparkline
from leadline.report.layout import ACCENT, QUIET, TONES, Look, joined, labelled
from leadline.text import clean, number, plural

NAME, NUMBER = 26, 10
ROWS = {
    "grad_square": "squared gradient",
    "loss_change": "predicted fall of loss",
    "function_change": "change of the function",
    "total_function_change": "… with ends",
    "linear_range": "steps until half is lost",
    "forward_growth": "growth forward",
    "backward_growth": "growth backward",
}


def render(forecast: Forecast, look: Look) -> str:
    """The forecast as text; with colour, as text with ANSI codes."""
    page = StringIO()
    color: Literal["standard"] | None = "standard" if look.color else None
    width = min(max(look.width, 60), 120)
    console = Console(file=page, width=width, color_system=color, force_terminal=look.color)
    for line in lines(forecast, width, short=look.detail == "verdict"):
        console.print(line, no_wrap=True, overflow="ignore", crop=False)
    return page.getvalue()


def lines(forecast: Forecast, width: int, *, short: bool = False) -> list[Text]:
    head = _headline(forecast)
    if short:
        return [head]
    facts = joined(
        clean(forecast.model),
        clean(forecast.optimizer),
        f"rate {number(forecast.lr)}",
        _measured_on(forecast),
    )
    advice = [line for said in forecast.advice for line in labelled("→", said, width)]
    return [head, Text(), *labelled("model", facts, width), Text(), *_table(forecast), Text(), *advice]


def _headline(forecast: Forecast) -> Text:
    if forecast.undecided:
        span = f"{number(forecast.max_depth_low)} and {number(forecast.max_depth_high)}"
        said = f" at which depth it gives way: between {span} (95 %)"
        head = Text.assemble(("UNDECIDED", TONES["warning"]), said, "; more seeds or depths")
    elif forecast.max_depth is None:
        head = Text.assemble(("NO LIMIT IN SIGHT", TONES["trains"]), f" up to depth {forecast.depths[-1]}")
    else:
        low, high = forecast.max_depth_low, forecast.max_depth_high
        span = "" if low is None or high is None else f" (95 %: {number(low)} to {number(high)})"
        tone = TONES["warning"] if forecast.max_depth <= forecast.depths[-1] else "bold"
        head = Text.assemble((f"TRAINS UP TO DEPTH {forecast.max_depth}", tone), span)
    if forecast.safe_depth is not None and forecast.safe_depth != forecast.max_depth:
        head.append(f"; beyond {forecast.safe_depth} with a warm-up")
    return head


def _measured_on(forecast: Forecast) -> str:
    if forecast.from_one_model:
        return f"extrapolated from {plural(forecast.depths[-1], 'block')} of one model"
    depths = ", ".join(map(str, forecast.depths))
    return f"depths {depths}, {plural(forecast.seeds, 'seed')}"


def _table(forecast: Forecast) -> list[Text]:
    chart = max(2 * len(forecast.depths), 8)
    head = f"{'':{NAME}}{'over depth':{chart}}{'first':>{NUMBER}}{'last':>{NUMBER}}  ~ depth^"
    rows = [_row(forecast, name, label, chart) for name, label in ROWS.items() if name in forecast.exponents]
    return [Text(head, style=QUIET), *rows]


def _row(forecast: Forecast, name: str, label: str, chart: int) -> Text:
    values = [_mean(forecast, name, depth) for depth in forecast.depths]
    drawing = "".join(char * 2 for char in sparkline(values, chart // 2)).ljust(chart)
    first, last = (number(values[0]), number(values[-1])) if len(values) > 1 else ("", number(values[-1]))
    exponent = _exponent(forecast.exponents[name])
    return Text.assemble(
        (f"{label:{NAME}}", ""), (drawing, ACCENT), f"{first:>{NUMBER}}{last:>{NUMBER}}", f"  {exponent}"
    )


def _exponent(found: Exponent) -> str:
    if found.low is None or found.high is None:
        return f"{found.value:+.2f}"
    return f"{found.value:+.2f} ± {(found.high - found.low) / 2:.2f}"


def _mean(forecast: Forecast, name: str, depth: int) -> float | None:
    """Geometric mean over seeds."""
    values = [_value(point, name) for point in forecast.points if point.depth == depth]
    logs = [math.log(value) for value in values if value is not None and 0 < value < math.inf]
    return math.exp(sum(logs) / len(logs)) if logs else next(iter(values), None)


def _value(point: DepthPoint, name: str) -> float | None:
    if name == "linear_range":
        return point.parting
    if name in ("forward_growth", "backward_growth"):
        folds = point.forward_e_folds if name == "forward_growth" else point.backward_e_folds
        return None if folds is None else math.exp(min(folds, 700.0))
    found: float | None = getattr(point, name)
    return -found if found is not None and name.endswith("loss_change") else found
