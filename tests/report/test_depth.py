"""Numbers of the depth axis: gains per block, and the structure in words."""

from leadline.records import Stream
from leadline.report.depth import block_summary, cliff_names, gains
from tests.support import reports as samples


def test_placements_that_differ_are_counted_each():
    blocks = [
        samples.block(f"layers.{i}", 1.0, 1.0, residual=samples.residual(kind))
        for i, kind in enumerate(("pre", "pre", "post"))
    ]
    assert "2 pre-norm, 1 post-norm" in block_summary(blocks)
    assert "3 residual (pre-norm)" in block_summary([blocks[0]] * 3)


def test_a_change_of_width_is_no_change_of_the_gradient():
    widths = [(64, 1.0), (32, 2.0), (16, 4.0), (2, 32.0)]
    blocks = tuple(samples.block(f"layers.{i}", 1.0, ms, elements=n) for i, (n, ms) in enumerate(widths))
    assert gains(samples.profile([], [], blocks=blocks), 0) == (1.0, 1.0)


def test_a_stream_that_joins_another_has_no_head():
    joining = (Stream(input="x", blocks=3, joins=0),)
    assert gains(samples.profile([1.0, 2.0, 4.0], [1.0, 1.0, 1.0], streams=joining), 0) == (2.0, 1.0)


def test_a_profile_without_gradients_has_the_cliffs_of_its_signal():
    forward = [1.0, 1.0, 1.0, 1.0, 1e-9, 1e-9, 1e-9, 1e-9]
    found = cliff_names(samples.profile(forward, [None] * 8), 0)
    assert found == cliff_names(samples.profile(forward, [1.0] * 8), 0)
    assert len(found) == 1
    assert cliff_names(samples.profile([None] * 8, [None] * 8), 0) == ()
