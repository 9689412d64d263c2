"""The depth scale of a network whose numbers are near the limits of a float."""

from __future__ import annotations

import math

from leadline.readings.signal import read_depth_scale
from leadline.records import DepthBlock, Stream


def block(backward: float) -> DepthBlock:
    return DepthBlock(
        name="layer",
        stream=0,
        forward_ms=None,
        backward_ms=None,
        elements=8,
        exit=0,
        weights=1,
        norms=0,
        bypassed=False,
        residual=None,
        params=(),
        modules=(),
        forward_ms_predicted=1.0,
        backward_ms_predicted=backward,
    )


def test_a_gradient_that_falls_out_of_range_still_has_a_depth_scale():
    blocks = [block(each) for each in (1e-300, 1e-150, 1.0, 1e100, 1e200, 1.0)]
    found = read_depth_scale(blocks, (Stream(input="input", blocks=len(blocks)),))
    assert found is not None
    assert found.phase == "ordered"
    assert math.isclose(math.log(found.chi), -500 * math.log(10) / 4, rel_tol=1e-9)
