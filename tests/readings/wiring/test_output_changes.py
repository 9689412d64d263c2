"""How much two outputs differ, where their samples are, and which outputs compare samples with each other."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from leadline.readings.wiring.output_changes import (
    change_along,
    is_comparison,
    largest_magnitude,
    reversed_samples,
)


def table(size: float) -> tuple[Tensor, Tensor]:
    """Weights of four samples over each other that sum to `size`, before and after the first sample is redrawn."""
    torch.manual_seed(0)
    before, after = (size * torch.randn(4, 4).softmax(1) for _ in range(2))
    return before, after


@pytest.mark.parametrize(
    ("size", "found"), [(1.0, True), (1.009, True), (0.991, True), (1.012, False), (0.988, False)]
)
def test_samples_that_share_what_sums_to_one_are_compared_up_to_the_rounding_of_half_precision(
    size: float, found: bool
):
    assert is_comparison([table(size)], 4, {0}, 1e-6) == found


def test_a_table_of_pairs_is_a_comparison_if_only_pairs_with_the_redrawn_sample_change():
    before = torch.randn(4, 4)
    after = before.clone()
    after[0] += 1
    after[:, 0] += 1
    assert is_comparison([(before, after)], 4, {0}, 1e-6)
    after[2, 3] += 1
    assert not is_comparison([(before, after)], 4, {0}, 1e-6)
    assert not is_comparison([(before[:, :3], after[:, :3])], 4, {0}, 1e-6)


@pytest.mark.parametrize(("fill", "largest"), [(-99.0, 99.0), (-101.0, 1.0), (-1e9, 1.0)])
def test_what_stands_for_minus_infinity_is_no_magnitude(fill: float, largest: float):
    assert largest_magnitude(torch.tensor([1.0, 0.5, fill, fill])) == largest
    assert largest_magnitude(torch.tensor([1.0, 0.5, -torch.inf, torch.nan])) == 1.0


def test_the_change_of_each_sample_is_relative_and_found_where_the_samples_are():
    before = torch.full((3, 5), 2.0)
    after = before.clone()
    after[1] += 1.0
    for one, other in ((before, after), (before.T, after.T), (before.reshape(15), after.reshape(15))):
        change = change_along(one, other, 3, 0)
        assert change is not None
        assert change.tolist() == [0.0, 0.5, 0.0]
    assert change_along(before, after, 4, 0) is None
    assert change_along(before, after[:2], 3, 0) is None


def test_a_reversed_batch_is_put_back_into_order():
    output = torch.arange(6.0).reshape(3, 2)
    assert reversed_samples(output.flip(0), 3, None, 0).tolist() == output.tolist()
    assert reversed_samples(output.flip(0).flatten(), 3, 2, 0).tolist() == output.flatten().tolist()
    assert reversed_samples(torch.randn(5, 2), 3, None, 0) is None
