"""A forecast on a page: how deep it goes, the map of depth and rate, and each quantity over depth."""

from __future__ import annotations

from dataclasses import dataclass

from markupsafe import Markup

from leadline.records import DepthLimit, Forecast
from leadline.report.charts.lines import Picture, line_chart
from leadline.report.html.page import fill
from leadline.report.notebook_cards import forecast_pictures
from leadline.text import number


@dataclass(frozen=True, slots=True, kw_only=True)
class Law:
    """What the template shows of a forecast."""

    forecast: Forecast
    title: str
    sentence: str
    facts: list[tuple[str, str]]
    pictures: list[tuple[Picture, Markup]]
    limits: list[tuple[DepthLimit, str]]
    """Each with its interval in words."""


def law_of(forecast: Forecast) -> Law:
    return Law(
        forecast=forecast,
        title="NO LIMIT IN SIGHT"
        if forecast.max_depth is None
        else f"TRAINS UP TO DEPTH {forecast.max_depth}",
        sentence=_sentence(forecast),
        facts=_facts(forecast),
        pictures=[(each, Markup(_drawn(each))) for each in forecast_pictures(forecast)],
        limits=[(each, _interval(each.low, each.high)) for each in forecast.limits],
    )


def render_forecast(forecast: Forecast) -> str:
    """A page of its own."""
    law = law_of(forecast)
    return fill("forecast.html", [], law=law, title=f"{law.title}: {forecast.model}")


def _sentence(forecast: Forecast) -> str:
    interval = _interval(forecast.max_depth_low, forecast.max_depth_high)
    said = [f"95 %: {interval}"] if interval else []
    if forecast.safe_depth is not None and forecast.safe_depth != forecast.max_depth:
        said.append(f"beyond {forecast.safe_depth} with a warm-up")
    return "; ".join(said)


def _facts(forecast: Forecast) -> list[tuple[str, str]]:
    measured = "one model, extrapolated" if forecast.from_one_model else ", ".join(map(str, forecast.depths))
    rows = [
        ("Model", forecast.model),
        ("Optimiser", forecast.optimizer),
        ("Rate", number(forecast.lr) if forecast.lr is not None else ""),
        ("Depths", measured),
        ("Seeds", str(forecast.seeds)),
    ]
    return [(name, value) for name, value in rows if value]


def _interval(low: float | None, high: float | None) -> str:
    return "" if low is None or high is None else f"{number(low)} to {number(high)}"


def _drawn(picture: Picture) -> str:
    return line_chart(picture.lines, label=picture.title, kind=picture.kind, names=picture.names)
