"""Views of a field: axes of length one come and go, and the others keep what they share."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leadline.readings.theory.field import RandomField, _groups, reshaped
from leadline.readings.theory.position_profile import PositionProfile

SIZES = st.lists(st.integers(1, 6), min_size=1, max_size=5)


@given(SIZES, st.data())
def test_groups_of_axes_cover_both_shapes_and_hold_the_same_elements(sizes: list[int], data: st.DataObject):
    """The new shape has the same factors, of which neighbors are merged and ones are inserted."""
    new = [1]
    for size in sizes:
        merge = data.draw(st.booleans())
        new = [*new[:-1], new[-1] * size] if merge else [*new, size, *[1] * data.draw(st.integers(0, 2))]
    groups = _groups(tuple(sizes), tuple(new))
    assert [axis for old, _ in groups for axis in old] == list(range(len(sizes)))
    assert [axis for _, axes in groups for axis in axes] == list(range(len(new)))
    for old, axes in groups:
        assert math.prod(sizes[axis] for axis in old) == math.prod(new[axis] for axis in axes)


@pytest.mark.parametrize(
    ("old", "new"),
    [((4, 1), (4, 1, 1)), ((4, 1, 6), (4, 6)), ((4, 6), (1, 4, 1, 6)), ((1,), (1, 1))],
    ids=str,
)
def test_axes_of_length_one_come_and_go(old: tuple[int, ...], new: tuple[int, ...]):
    shares = {4: 0.25, 6: 0.5, 1: 2.0}
    field = RandomField(shape=old, mean=0.1, ms=2.0, share=tuple(shares[size] for size in old))
    view = reshaped(field, new)
    assert (view.mean, view.ms) == (0.1, 2.0)
    assert view.share == tuple(shares[size] for size in new)


def test_a_tensor_without_elements_keeps_its_moments_and_has_no_profile():
    uneven = PositionProfile(1, (0.5, 1.0, 1.0, 1.5))
    field = RandomField(shape=(0, 4), mean=0.1, ms=2.0, share=(2.0, 0.25), profile=uneven)
    view = reshaped(field, (0, 2, 2))
    assert (view.mean, view.ms, view.share) == (0.1, 2.0, (2.0, 2.0, 2.0))
    assert view.profile is None
