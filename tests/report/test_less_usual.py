"""Reports of things that are rarely there, or missing: each is said, or left out without a hole."""

from __future__ import annotations

import math

import pytest
from msgspec.structs import replace

from leadline.checks._examples import weight
from leadline.records import DepthScale, Rehearsal, Stream
from leadline.report.depth import axis_lines, block_summary
from leadline.report.html.advice import reproduced_by
from leadline.report.html.causes import _change, depths_drawn, ranges_drawn, steps_drawn
from leadline.report.html.panels import _kind
from leadline.report.repair_formats import to_markdown
from leadline.report.verdict import _what_is_missing
from tests.report.test_repair import repair
from tests.support import reports as samples


def test_placements_that_differ_are_counted_each():
    blocks = [
        samples.block(f"layers.{i}", 1.0, 1.0, residual=samples.residual(kind))
        for i, kind in enumerate(("pre", "pre", "post"))
    ]
    assert "2 pre-norm, 1 post-norm" in block_summary(blocks)
    assert "3 residual (pre-norm)" in block_summary([blocks[0]] * 3)


def test_streams_beyond_the_second_are_named_and_shown_on_demand():
    many = replace(
        samples.profile([1.0] * 3, [1.0] * 3), streams=tuple(Stream(input=name, blocks=3) for name in "abcd")
    )
    short = "\n".join(line.plain for line in axis_lines(many, 80))
    assert "and 2 further streams: -v shows all" in short
    assert "further" not in "\n".join(line.plain for line in axis_lines(many, 80, all_streams=True))


def test_a_prediction_that_does_not_reach_all_blocks_says_how_far_it_got():
    known = {"forward_ms_predicted": 1.0, "backward_ms_predicted": 1.0}
    blocks = (samples.block("a", None, None, **known), samples.block("b", None, None))
    predicted = replace(samples.profile([], []), blocks=blocks)
    assert "to 1 of 2 blocks" in _what_is_missing(samples.report(predicted))
    assert "leadline.predict(build)" in reproduced_by(samples.report(predicted))


def test_a_repair_without_a_trial_has_no_table_of_losses():
    assert "loss over" in to_markdown(repair())
    assert "loss over" not in to_markdown(repair(trial=None))


@pytest.mark.parametrize("values", [(None, 1.0), (0.0, 1.0), (math.inf, 1.0)], ids=str)
def test_a_change_needs_two_positive_numbers(values):
    first, last = (samples.block("x", 1.0, each) for each in values)
    assert _change(first, last) is None
    assert _change(samples.block("a", 1.0, math.e), samples.block("b", 1.0, 1.0)) == pytest.approx(1.0)


def test_a_weight_is_named_by_its_role_or_by_its_place():
    places = [weight(role="query"), weight(), weight(residual=True), weight(residual=True, last=True)]
    assert [_kind(each) for each in places] == [
        "query",
        "outside of branches",
        "in a branch",
        "end of a branch",
    ]


def test_what_a_step_did_not_measure_is_not_drawn():
    update = samples.step()
    unknown = replace(update, ranges=tuple(replace(each, share=None) for each in update.ranges))
    assert "…" in ranges_drawn(update)
    assert "all, predicted" in ranges_drawn(unknown)
    assert "…" not in ranges_drawn(unknown)
    assert steps_drawn(Rehearsal(losses=(2.0, 1.0))).count("<path") < steps_drawn(
        Rehearsal(losses=(2.0, 1.0), constant=1.5)
    ).count("<path")


def scale(xi: float, reach: float) -> DepthScale:
    return DepthScale(chi=1.0, xi=xi, phase="critical", trainable_depth=reach)


def test_an_infinite_reach_has_no_mark_on_the_ruler():
    profile = samples.profile([1.0] * 4, [1.0] * 4)
    assert "trainable to about" in depths_drawn(profile, scale(5.0, 30.0))
    endless = depths_drawn(profile, scale(math.inf, math.inf))
    assert "your depth" in endless
    assert "trainable" not in endless
