"""One step on the page: what was not measured is not drawn."""

import math

from msgspec.structs import replace

from leadline.records import DepthScale, Margin, Rehearsal
from leadline.report.charts.bars import draw_bars, draw_ruler
from leadline.report.pages.limits import depth_ruler, margins_section
from leadline.report.pages.step import loss_change_chart, rehearsal_chart
from tests.support import reports as samples


def test_a_range_whose_share_is_unknown_has_no_bar():
    update = samples.step()
    unknown = replace(update, ranges=tuple(replace(each, share=None) for each in update.ranges))
    assert "…" in draw_bars(loss_change_chart(update))
    assert "all, predicted" in draw_bars(loss_change_chart(unknown))
    assert "…" not in draw_bars(loss_change_chart(unknown))


def test_the_best_constant_output_is_drawn_if_it_is_known():
    assert len(rehearsal_chart(Rehearsal(losses=(2.0, 1.0))).series) == 1
    assert len(rehearsal_chart(Rehearsal(losses=(2.0, 1.0), constant=1.5)).series) == 2


def scale(xi: float, limit: float) -> DepthScale:
    return DepthScale(chi=1.0, xi=xi, phase="critical", trainable_depth=limit)


def test_an_infinite_depth_limit_has_no_mark_on_the_ruler():
    profile = samples.profile([1.0] * 4, [1.0] * 4)
    assert "trainable to about" in draw_ruler(depth_ruler(profile, scale(5.0, 30.0), 30.0))
    endless = draw_ruler(depth_ruler(profile, scale(math.inf, math.inf), math.inf))
    assert "your depth" in endless
    assert "trainable" not in endless


def test_a_margin_without_a_ratio_is_described_in_words():
    def used(value: float, limit: float, side: str) -> str:
        margin = Margin(quantity="x", value=value, limit=limit, side=side)
        (details,) = margins_section((margin,)).body
        return details.items[0].rows[0][3]

    assert used(1.0, 4.0, "below") == "25 %"
    assert used(-1.0, 4.0, "below") == "not near the limit"
    assert used(-1.0, 4.0, "above") == "below 0"
