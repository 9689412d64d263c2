"""The picture of the depth shows each measured block as a round dot at its place."""

from __future__ import annotations

import math

import pytest

from leadline.checks._history import History
from leadline.monitor.tracker_feed import CURVES, depth_profile
from leadline.records.run import Sample

pytest.importorskip("PIL")


def test_a_block_without_measured_neighbors_is_a_round_dot_at_its_place():
    forward = [1.0, math.nan, 10.0, math.nan, 100.0]
    history = History().extend([Sample(step=0, scalars={}, vectors={"forward_ms": forward})])
    picture = depth_profile(history)
    assert picture is not None
    color = next(color for name, _, color in CURVES if name == "forward_ms")
    around = range(
        picture.height // 2 - 60, picture.height // 2 + 60
    )  # below the legend, above the other dots
    dot = [(x, y) for x in range(picture.width) for y in around if picture.getpixel((x, y)) == color]
    columns, rows = ({place[axis] for place in dot} for axis in (0, 1))
    assert len(columns) == len(rows) > 1
    assert (min(rows) + max(rows)) / 2 == picture.height / 2
