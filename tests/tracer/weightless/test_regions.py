"""Boxes say which elements a view has, and cutting a box leaves exactly the rest."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from leadline.tracer.weightless.memory import box_of_view, intersect, join_boxes, subtract, volume

SHAPE = (4, 3, 5)


@st.composite
def boxes(draw):
    pairs = [(draw(st.integers(0, size - 1)), size) for size in SHAPE]
    return tuple((start, draw(st.integers(start + 1, size))) for start, size in pairs)


def elements(box):
    return set(torch.arange(60).view(SHAPE)[tuple(slice(*part) for part in box)].reshape(-1).tolist())


@given(boxes(), boxes())
def test_what_is_cut_and_what_is_left_are_the_whole(box, other):
    common = intersect(box, other)
    if common is None:
        assert not elements(box) & elements(other)
        return
    rest = list(subtract(box, common))
    assert sum(map(volume, rest)) + volume(common) == volume(box)
    assert set().union(elements(common), *map(elements, rest)) == elements(box)


@given(boxes(), boxes())
def test_joined_boxes_have_the_elements_of_both(box, other):
    both = join_boxes(box, other)
    if both is not None:
        assert elements(both) == elements(box) | elements(other)


@given(boxes(), st.permutations(range(3)), st.booleans())
def test_a_view_is_the_box_that_it_shows(box, order, flat):
    table = torch.arange(60).view(SHAPE)
    view = table[tuple(slice(*part) for part in box)].permute(*order)
    if flat and view.is_contiguous():
        view = view.reshape(-1)
    found = box_of_view(SHAPE, table.stride(), view.shape, view.stride(), view.storage_offset())
    assert found is not None
    assert elements(found) == set(view.reshape(-1).tolist())


def test_every_other_row_is_no_box():
    table = torch.arange(60).view(SHAPE)
    assert box_of_view(SHAPE, table.stride(), table[::2].shape, table[::2].stride(), 0) is None
