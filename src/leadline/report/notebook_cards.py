"""How records that are worth a picture look in a notebook: cards of small charts, without scripts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from leadline.report.charts.lines import Line, Picture, card
from leadline.text import number, share, signed

if TYPE_CHECKING:
    from leadline.records.forecast import Forecast
    from leadline.records.update import Update

QUANTITIES = {
    "grad_square": "squared gradient",
    "loss_change": "predicted fall of the loss",
    "function_change": "change of the function",
}
"""What is drawn over depth, by its field of a DepthPoint."""


def update_card(update: Update) -> str:
    """One step: promised and measured, and where on the depth axis it happens."""
    bound = "≥ " if update.safe_lr_is_bound else ""
    safe = "" if update.safe_lr is None else f"rate {number(update.lr)}, safe {bound}{number(update.safe_lr)}"
    kept = "" if update.ratio is None else f"{share(update.ratio)} of the promise"
    title = (
        f"One step of {update.optimizer}: loss {signed(update.predicted_loss_change)} promised, "
        f"{signed(update.measured_loss_change)} measured"
    )
    ratios = [each.update_norm / each.weight_norm if each.weight_norm else None for each in update.blocks]
    shares = [each.share for each in update.blocks]
    pictures = [
        Picture(title="update / weight", note="by block", lines=[Line(values=ratios)]),
        Picture(title="share of the promise", note="by block", lines=[Line(values=shares)], kind="linear"),
    ]
    facts = " · ".join(part for part in (kept, safe) if part)
    return card(title, [facts, update.confidence_why], pictures if update.blocks else [])


def forecast_card(forecast: Forecast) -> str:
    """Each quantity over depth, with its exponent, and what follows."""
    limit = forecast.max_depth
    title = (
        f"No limit in sight up to depth {forecast.depths[-1]}"
        if limit is None
        else f"Trains up to depth {limit}"
    )
    facts = f"{forecast.model} · {forecast.optimizer} · rate {number(forecast.lr)} · depths " + ", ".join(
        map(str, forecast.depths)
    )
    return card(title, [facts], forecast_pictures(forecast), forecast.advice)


def forecast_pictures(forecast: Forecast) -> list[Picture]:
    """The map of depth and rate, then each quantity over depth with its exponent."""
    drawn = [_over_depth(forecast, field, label) for field, label in QUANTITIES.items()]
    return [each for each in (_rates(forecast), *drawn) if each is not None]


def _rates(forecast: Forecast) -> Picture | None:
    """Below the line a step keeps at least half of what its gradient promises; dashed: the rate as it is."""
    lr = forecast.lr
    multiples = [_at(forecast, "parting", depth) for depth in forecast.depths]
    if lr is None or not any(multiples):
        return None
    safe = [None if each is None else lr * each for each in multiples]
    return Picture(
        title="Safe rate over depth",
        note=f"dashed: the rate {number(lr)}",
        lines=[Line(values=safe, label="safe"), Line(values=[lr] * len(safe), label="yours", tone="theory")],
        names=[*map(str, forecast.depths)],
    )


def _over_depth(forecast: Forecast, field: str, label: str) -> Picture | None:
    values = [_at(forecast, field, depth) for depth in forecast.depths]
    if not any(value is not None for value in values):
        return None
    exponent = forecast.exponents.get(field)
    note = "" if exponent is None else f"~ depth^{exponent.value:+.2f}"
    return Picture(title=label, note=note, lines=[Line(values=values)], names=[*map(str, forecast.depths)])


def _at(forecast: Forecast, field: str, depth: int) -> float | None:
    return mean([getattr(each, field) for each in forecast.points if each.depth == depth])


def mean(values: Sequence[float | None]) -> float | None:
    """Geometric mean of the sizes of those that have a logarithm; None if none has."""
    logs = [math.log(abs(value)) for value in values if value and math.isfinite(value)]
    return math.exp(sum(logs) / len(logs)) if logs else None
