"""The page of a forecast: its charts, and a title that says whether the limit is known."""

from msgspec.structs import replace

from leadline.records import AxisLaw, Exponent
from leadline.records.forecast import AxisPoint
from leadline.report.page import Charts, Table
from leadline.report.pages.forecast import _law_section, forecast_elements, forecast_page
from tests.support import reports as samples


def chart_titles(forecast):
    charts = next(each for each in forecast_elements(forecast) if isinstance(each, Charts))
    return [each.title for each in charts.items]


def test_a_forecast_without_a_rate_has_no_chart_of_rates():
    assert "Safe rate over depth" in chart_titles(samples.forecast())
    assert "Safe rate over depth" not in chart_titles(samples.forecast(lr=None))


def test_a_quantity_that_was_not_measured_has_no_chart():
    usual = samples.forecast()
    points = tuple(replace(each, function_change=None) for each in usual.points)
    assert len(chart_titles(replace(usual, points=points))) == len(chart_titles(usual)) - 1


def test_an_undecided_forecast_does_not_claim_that_there_is_no_limit():
    undecided = samples.forecast(max_depth=None, undecided=True, max_depth_low=8.0, max_depth_high=64.0)
    assert forecast_page(undecided).headline.startswith(
        "UNDECIDED: the limit lies between depth 8.00 and 64.0"
    )


def test_a_law_shows_the_exponents_that_it_has_and_rules_only_if_there_are_some():
    def exponent(value: float) -> Exponent:
        return Exponent(value=value, low=None, high=None, seeds=1, depths=(8, 16))

    points = tuple(
        AxisPoint(
            value=value,
            seed=0,
            parameters=10,
            loss=1.0,
            grad_square=1.0 / value,
            update_norm=0.1,
            function_change=None,
            blocks_change=None,
            safe_lr=None,
            sizes=(),
        )
        for value in (8, 16)
    )
    exponents = {"grad_square": exponent(-1.0), "function_change": exponent(0.5)}
    law = AxisLaw(
        axis="batch", values=(8, 16), base={}, points=points, exponents=exponents, rules=(), advice=()
    )
    section = _law_section(law)
    (table,) = [each for each in section.body if isinstance(each, Table)]
    assert len(table.rows) == 2
    titles = [chart.title for each in section.body if isinstance(each, Charts) for chart in each.items]
    assert len(titles) == 1
