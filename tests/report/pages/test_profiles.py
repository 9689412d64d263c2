"""The panels: what is drawn over depth, for every kind of report."""

import math

import pytest
from msgspec.structs import replace

from leadline.checks._examples import weight
from leadline.checks._laws import depth_margin
from leadline.records import Attention, LimitLevel, Margin, ModelFacts, Stream, Units, Weight
from leadline.report.pages.profiles import (
    CHART_KEYS,
    axis_of,
    joint_axis,
    kind_of_weight,
    overlay,
    profiles_of,
)
from tests.support import reports as samples


def by_key(profile):
    return {chart.key: chart for chart in profiles_of(profile).charts}


def test_a_measured_profile_has_its_signal_with_theory_beside_it():
    blocks = tuple(
        samples.block(f"b{i}", 1.0, 2.0, forward_ms_predicted=1.1, backward_ms_predicted=2.2, band=0.1)
        for i in range(4)
    )
    panels = by_key(samples.profile([], [], blocks=blocks, streams=(Stream(input="x", blocks=4),)))
    assert [each.label for each in panels["forward"].series] == ["measured", "theory"]
    assert list(panels["backward"].series[1].values) == [2.2] * 4
    assert list(panels["forward"].series[1].band) == [0.1] * 4


def test_a_profile_without_weights_is_drawn_as_predicted():
    blocks = tuple(samples.block(f"b{i}", None, None, forward_ms_predicted=1.1) for i in range(4))
    panels = by_key(samples.profile([], [], blocks=blocks, streams=(Stream(input="x", blocks=4),)))
    assert [each.label for each in panels["forward"].series] == ["predicted"]


def test_streams_stand_one_behind_the_other_with_a_gap():
    axis = axis_of(samples.broken().profile)
    assert axis.starts == ((0, "source"), (7, "target"))
    assert axis.gaps == (6,)
    assert (axis.names[5], axis.names[6], axis.names[7]) == ("encoder.5", "", "decoder.0")


def test_marks_are_counted_and_explained():
    notes = by_key(samples.profile([1.0, math.nan, math.inf, 0.0, 0.0], [1.0] * 5))["forward"].notes
    assert notes == ("✕ NaN in 1 block", "▲ infinite in 1 block", "○ exactly zero in 2 blocks")


def charts_with(profile, *, findings=(), margins=()):
    return {chart.key: chart for chart in profiles_of(profile, findings, margins).charts}


def test_the_limit_of_a_decay_lies_its_e_folds_below_where_the_gradient_starts():
    profile = samples.sick().profile
    (margin,) = depth_margin(profile, "backward", growth=False)
    (limit,) = charts_with(profile, margins=[margin])["backward"].limits
    blocks = profile.blocks[:-1]
    assert list(limit.values[:-1]) == pytest.approx([blocks[-1].backward_ms * math.exp(-margin.limit)] * 59)
    assert limit.values[-1] is None  # the head is not part of the law


def test_the_limit_of_a_gradient_is_that_of_its_sum_of_squares():
    blocks = tuple(samples.block(f"b{i}", 1.0, 1.0, elements=size) for i, size in enumerate((100, 400)))
    profile = samples.profile([], [], blocks=blocks, streams=(Stream(input="x", blocks=2),))
    level = LimitLevel(quantity="backward", level=8.0, blocks=(0, 1))
    margin = Margin(code="B201", quantity="decay", value=9.0, limit=7.0, over_depth=level)
    (limit,) = charts_with(profile, margins=[margin])["backward"].limits
    assert list(limit.values) == [0.08, 0.02]


def test_a_limit_moves_with_a_cliff_because_that_block_is_judged_alone():
    forward = [math.exp(-0.1 * i - (9.0 if i > 10 else 0.0)) for i in range(24)]
    profile = samples.profile(forward, [1.0] * 24)
    (margin,) = depth_margin(profile, "forward", growth=False)
    assert margin.over_depth.cliffs == {11: pytest.approx(-9.1)}
    (limit,) = charts_with(profile, margins=[replace(margin, value=margin.limit)])["forward"].limits
    assert limit.values[10] == pytest.approx(math.exp(-margin.limit))
    assert limit.values[11] == pytest.approx(math.exp(-margin.limit - 9.1))


def test_a_limit_that_is_far_away_is_said_instead_of_flattening_the_line():
    profile = samples.profile([1.0] * 5, [1.0] * 5)
    level = LimitLevel(quantity="forward", level=1e-6, blocks=(0, 4))
    margin = Margin(code="F102", quantity="decay", value=1.4, limit=14.0, over_depth=level)
    chart = charts_with(profile, margins=[margin])["forward"]
    assert chart.limits == ()
    assert "10 % of the limit of F102" in chart.notes


def test_root_findings_are_marked_where_they_are_and_notes_are_not():
    profile = samples.broken().profile
    findings = [
        replace(samples.finding("F104", severity="warning"), layers=(4, 6)),
        replace(samples.finding("B201"), layers=(2, 3)),
        replace(samples.finding("I302"), layers=(2, 3)),
        replace(samples.finding("F106"), layers=(0, 1), explained_by="B201"),
        replace(samples.finding("W601", severity="info"), layers=(0, 0)),
    ]
    for chart in charts_with(profile, findings=findings).values():
        found = [(each.label, each.first, each.last) for each in chart.stretches]
        assert found == [("B201, I302", 2, 3), ("F104 gradient-decay", 4, 7)]  # behind the gap of the streams


@pytest.mark.parametrize("value", [None, math.nan, math.inf])
def test_a_chart_without_a_finite_value_is_left_out(value):
    assert [*by_key(samples.profile([1.0] * 3, [value] * 3))] == ["forward"]


def test_a_chart_that_is_left_out_because_all_is_nan_is_named():
    assert (
        "no finite value in: backward signal" in profiles_of(samples.profile([1.0] * 3, [math.nan] * 3)).hint
    )
    assert "finite" not in profiles_of(samples.profile([1.0] * 3, [None] * 3)).hint


def test_the_change_a_block_is_in_the_direction_in_which_the_signal_runs():
    panels = by_key(samples.profile([1.0, 2.0, 4.0, 9.0], [1.0, 10.0, 100.0, 900.0]))
    assert panels["forward"].notes == ("×2.00 per block",)
    assert panels["backward"].notes == ("×0.100 per block toward the input",)


def test_every_panel_has_its_place_in_the_order():
    blocks = tuple(
        samples.block(
            f"b{i}", 1.0, 1.0, residual=samples.residual(), likeness=0.5, units=Units(count=4, dead=1)
        )
        for i in range(3)
    )
    weights = tuple(
        Weight(block=i, name=f"w{i}", fan_in=4, fan_out=4, variance=1.0, grad_ms=1.0, role=role)
        for i, role in enumerate(("query", "", "value"))
    )
    attention = Attention(block=1, module="a", keys=4, purity=0.5, uniform=0.25, logit_var=None)
    facts = ModelFacts(weights=weights, attentions=(attention,))
    shape = samples.profile([], [], blocks=blocks, streams=(Stream(input="x", blocks=3),), facts=facts)
    assert [chart.key for chart in profiles_of(shape).charts] == [
        key for key in CHART_KEYS if key != "updates"
    ]
    assert [each.label for each in by_key(shape)["weights"].series] == [
        "query",
        "value",
        "outside of branches",
    ]
    assert list(by_key(shape)["units"].series[0].values) == [0.25] * 3


@pytest.mark.parametrize("lengths", [(3, 5), (5, 3)])
def test_two_profiles_of_other_depth_share_the_longer_axis(lengths):
    first, second = (samples.profile([1.0] * n, [1.0] * n) for n in lengths)
    shown = overlay(first, second, ("A", "B"))
    assert len(shown.axis.names) == 5
    assert [each.label for each in shown.charts[0].series] == ["A", "B"]
    assert {len(each.values) for chart in shown.charts for each in chart.series} == {5}


def test_where_names_differ_both_are_given():
    first = axis_of(samples.profile([1.0, 1.0], [1.0, 1.0]))
    other = replace_name(samples.profile([1.0], [1.0]))
    assert joint_axis(first, axis_of(other)).names == ("layers.0 | other", "layers.1")


def replace_name(profile):
    return replace(profile, blocks=(replace(profile.blocks[0], name="other"),))


def test_where_theory_says_nothing_that_is_said():
    told = [samples.block(f"b{i}", 1.0, 1.0, forward_ms_predicted=1.0, band=0.5) for i in range(3)]
    silent = [samples.block(f"c{i}", 1.0, 1.0, band=3.0) for i in range(2)]
    shape = samples.profile([], [], blocks=(*told, *silent), streams=(Stream(input="x", blocks=5),))
    assert "no theory in 2 blocks: its band is too wide there" in by_key(shape)["forward"].notes
    assert not [note for note in by_key(shape)["backward"].notes if "band" in note]


def test_a_weight_is_named_by_its_role_or_by_its_place():
    places = [weight(role="query"), weight(), weight(residual=True), weight(residual=True, last=True)]
    assert [kind_of_weight(each) for each in places] == [
        "query",
        "outside of branches",
        "in a branch",
        "end of a branch",
    ]
