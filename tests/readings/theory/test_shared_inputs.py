"""What positions share: before a batch norm, through windows and strides, and by the rows that an embedding reads."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from leadline.readings.theory.prediction import predict
from leadline.tracer.trace import trace
from tests.support.theory_networks import BATCH, TOKENS, WIDTH, mean_errors, output_of

CHANNELS, SIDE = 48, 8


def _batch_norm_stack(kernel: int) -> nn.Module:
    layers: list[nn.Module] = []
    for _ in range(4):
        convolution = nn.Conv2d(CHANNELS, CHANNELS, kernel, padding=kernel // 2, bias=False)
        nn.init.kaiming_normal_(convolution.weight)
        layers += [convolution, nn.BatchNorm2d(CHANNELS), nn.ReLU()]
    return nn.Sequential(*layers)


@pytest.mark.parametrize(("kernel", "error"), [(1, 1.15), (3, 1.2)])
def test_a_batch_norm_does_not_fluctuate_by_the_mean_that_it_removes(kernel: int, error: float):
    # each norm gave 22 % to 35 % too much, 1.9 to 2.5 times after three
    shape = (8, CHANNELS, SIDE, SIDE)
    _, backward = mean_errors(
        lambda: _batch_norm_stack(kernel), lambda seen: output_of(seen, "conv2d"), shape, draws=6
    )
    assert abs(backward) < math.log(error)


class Reduced(nn.Module):
    """The mean of a strided convolution: its gradient is equal everywhere, but that of its input is not."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Conv2d(32, 32, 1), nn.Conv2d(32, 32, 2, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        return self.outer(self.inner(x).expand(-1, -1, SIDE, SIDE)).mean((2, 3))


def test_the_taps_of_a_stride_make_the_gradients_of_neighbors_independent():
    # the gradient before the expansion is a sum over positions: 4 times as large if all of them had the same tap
    shape = (4, 32, 1, 1)
    _, backward = mean_errors(Reduced, lambda seen: output_of(seen, "conv2d"), shape, draws=8)
    assert abs(backward) < math.log(1.2)


class Positions(nn.Module):
    """The mean over tokens of token and position embeddings; positions are expanded or counted for each sample."""

    def __init__(self, *, counted: bool) -> None:
        super().__init__()
        self.counted = counted
        self.tokens, self.positions = nn.Embedding(4096, WIDTH), nn.Embedding(64, WIDTH)

    def forward(self, ids: Tensor) -> Tensor:
        if self.counted:
            places = torch.cumsum(torch.ones_like(ids), dim=1) - 1
        else:
            places = torch.arange(ids.shape[1]).expand(ids.shape[0], -1) + 2
        return (self.tokens(ids) + self.positions(places)).mean(1)


@pytest.mark.parametrize("counted", [False, True])
def test_positions_are_shared_by_samples_and_not_by_tokens(counted: bool):
    # a share that was the same along both axes would give 40 % more
    torch.manual_seed(0)
    ratios = []
    for _ in range(8):
        model, ids = Positions(counted=counted), torch.randint(4096, (BATCH, TOKENS))
        seen = trace(model, ids, loss=torch.sum)
        value = output_of(seen, "mean")
        measured = seen.values[value].forward
        assert measured is not None
        ratios.append(math.log(predict(seen).forward.predicted[value].ms / measured.ms))
    assert abs(sum(ratios)) / len(ratios) < math.log(1.1)


class Masked(nn.Module):
    """Attention that multiplies by a causal mask and fills with -10000, the largest fill that float16 models used."""

    def forward(self, x: Tensor) -> Tensor:
        visible = torch.ones(TOKENS, TOKENS).tril()
        return torch.softmax(x @ x.detach().transpose(-1, -2) / WIDTH + -1e4 * (1 - visible), dim=-1)


def test_a_mask_may_fill_with_ten_thousand():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), Masked())
    seen = trace(model, torch.randn(BATCH, TOKENS, WIDTH), loss=lambda out: out.square().sum())
    value = output_of(seen, "softmax")
    measured = seen.values[value].forward
    assert measured is not None
    assert abs(math.log(predict(seen).forward.predicted[value].ms / measured.ms)) < math.log(1.1)


class NarrowNorm(nn.Module):
    """A written RMS norm over few features, whose mean square fluctuates."""

    def __init__(self) -> None:
        super().__init__()
        self.offset, self.outer = nn.Parameter(torch.zeros(16)), nn.Linear(16, 16, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.offset
        return self.outer(x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


def test_the_gradient_of_a_norms_scale_is_inverse_to_it():
    # independent of the scale, the gradient of the mean square would be 1 + 3 * 2/16 times as large
    shape = (BATCH, 64, 16)
    _, at_scale = mean_errors(NarrowNorm, lambda seen: output_of(seen, "rsqrt"), shape, draws=12)
    _, at_square = mean_errors(NarrowNorm, lambda seen: output_of(seen, "add", 1), shape, draws=12)
    assert abs(at_square - at_scale) < math.log(1.15)
