"""A change over depth splits into single blocks that stand out and the change per block of the rest."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from leadline.checks._examples import profile_of
from leadline.readings.signal import read_depth_scale
from leadline.records import Stream
from leadline.records.cliffs import depth_change
from leadline.report.depth import cliff_names, gains


def logs(steps: list[float]) -> list[float]:
    return list(itertools.accumulate(steps, initial=0.0))


@given(st.floats(-6, 6), st.integers(4, 200))
def test_an_even_law_has_no_cliff_however_steep_it_is(step: float, blocks: int) -> None:
    assert depth_change(logs([step] * blocks)).cliffs == ()


@given(st.integers(4, 500), st.floats(0, 2.5))
def test_a_power_law_has_no_cliff(blocks: int, exponent: float) -> None:
    assert depth_change([exponent * math.log(place) for place in range(1, blocks + 1)]).cliffs == ()


@given(st.integers(8, 200), st.data())
def test_one_step_among_even_ones_is_found_wherever_it_is(blocks: int, data: st.DataObject) -> None:
    place = data.draw(st.integers(0, blocks - 1))
    steps = [0.05] * blocks
    steps[place] = 8.0
    change = depth_change(logs(steps))
    assert change.cliffs == (place,)
    assert change.per_block == pytest.approx(0.05)


def test_steps_that_return_every_few_blocks_are_the_law_and_not_cliffs() -> None:
    change = depth_change(logs([0.0, 0.0, -6.0] * 12))
    assert abs(change.rest) > 0.6 * abs(change.total)


def test_a_step_against_the_direction_of_the_change_is_kept_where_a_law_is_judged() -> None:
    steps = [-0.5] * 10 + [8.0] + [-0.5] * 10
    assert depth_change(logs(steps)).cliffs == (10,)
    assert depth_change(logs(steps), along=True).cliffs == ()


def small_embedding(blocks: int = 64):
    """A pre-norm stream that starts 1000 times smaller than its first branch: forward as l, backward as 1 / l."""
    forward = [1e-3, *(float(place) for place in range(1, blocks))]
    return profile_of(forward, [2e4, *(1 / place for place in range(1, blocks))])


def test_the_gain_per_block_leaves_out_the_block_after_a_small_embedding() -> None:
    profile = small_embedding()
    forward, backward = gains(profile, 0)
    assert forward == pytest.approx(63 ** (1 / 62), rel=1e-6)
    assert backward == pytest.approx(63 ** (1 / 62), rel=1e-6)
    assert cliff_names(profile, 0) == (profile.blocks[1].name,)


def test_a_power_law_with_a_cliff_has_no_trainable_depth() -> None:
    profile = small_embedding()
    predicted = tuple(replace(block, backward_ms_predicted=block.backward_ms) for block in profile.blocks)
    scale = read_depth_scale(predicted, (Stream(input="input", blocks=len(predicted)),))
    assert scale is not None
    assert scale.phase == "critical"
    assert scale.trainable_depth == math.inf
