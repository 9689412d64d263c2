"""Layers whose weights and inputs have a mean, and attention that drops weights: sizes agree with measured ones."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.support.theory_bench import compare

SHAPES = {
    "linear": (F.linear, (256, 64), (128, 64)),
    "conv1d": (lambda x, w: F.conv1d(x, w), (16, 16, 128), (32, 16, 3)),
    "conv2d": (lambda x, w: F.conv2d(x, w), (16, 4, 24, 24), (32, 4, 3, 3)),
    "conv_transpose1d that overlaps": (
        lambda x, w: F.conv_transpose1d(x, w, stride=2), (16, 16, 256), (16, 32, 4),
    ),
    "conv_transpose1d with gaps": (lambda x, w: F.conv_transpose1d(x, w, stride=4), (64, 1, 256), (1, 32, 1)),
    "conv_transpose2d with gaps": (lambda x, w: F.conv_transpose2d(x, w, stride=2), (64, 1, 32, 32), (1, 32, 1, 1)),
}  # fmt: skip


@pytest.mark.parametrize(("function", "inputs", "weights"), SHAPES.values(), ids=SHAPES)
def test_the_size_of_a_layer_with_a_mean_is_predicted(
    function: Callable[..., Tensor], inputs: tuple[int, ...], weights: tuple[int, ...]
):
    torch.manual_seed(0)
    compared = compare(function, 2 + torch.randn(inputs), 2 + torch.randn(weights))
    predicted, measured = compared.forward
    assert predicted == pytest.approx(measured, rel=0.1)


@pytest.mark.parametrize("dropped", [0.0, 0.5, 0.8])
def test_the_size_of_attention_that_drops_weights_is_predicted(dropped: float):
    def attend(*operands: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(*operands, dropout_p=dropped)

    torch.manual_seed(0)
    compared = compare(attend, *(torch.randn(16, 8, 32, 16) for _ in range(3)))
    for predicted, measured in (compared.forward, compared.backward):
        assert predicted == pytest.approx(measured, rel=0.1)
