"""The scale of a norm: its gradient is the part of the gradient along the signal, which independence misjudges."""

from __future__ import annotations

import math
from collections.abc import Callable
from statistics import mean

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leadline.readings.theory.prediction import first_floating, predict
from leadline.records import Trace
from leadline.tracer.trace import trace

WIDTH, HIDDEN = 64, 256
DRAWS = 6


class WrittenNorm(nn.Module):
    """An RMS norm written as pow, mean, rsqrt and mul."""

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)


class Offset(nn.Module):
    """Passes independent features on, with a gradient; behind a linear layer their squares would be correlated."""

    def __init__(self) -> None:
        super().__init__()
        self.offset = nn.Parameter(torch.zeros(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.offset


class Block(nn.Module):
    """$y = x + W_2 f(W_1 n(x))$ with a written norm $n$."""

    def __init__(self, function: Callable[[Tensor], Tensor], *, gated: bool) -> None:
        super().__init__()
        self.function, self.norm = function, WrittenNorm()
        self.up, self.gate = nn.Linear(WIDTH, HIDDEN, bias=False), None
        if gated:
            self.gate = nn.Linear(WIDTH, HIDDEN, bias=False)
        self.down = nn.Linear(HIDDEN, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        read = self.norm(x)
        inner = self.function(self.up(read))
        return x + self.down(inner if self.gate is None else inner * self.gate(read))


def errors_of_scale(seen: Trace, name: str) -> list[float]:
    """ln(predicted / measured) of the gradients of all ops of that name."""
    found = predict(seen)
    errors = []
    for op in seen.ops:
        value = first_floating(seen, op)
        if op.name == name and value is not None:
            measured = seen.values[value].backward
            assert measured is not None
            errors.append(math.log(found.backward.fields[value].ms / measured.ms))
    return errors


def mean_error(
    function: Callable[[Tensor], Tensor], *, gated: bool = False, name: str = "rsqrt", place: int = 0
) -> float:
    """The mean over draws of the error at the first norm, whose gradient passes the block."""
    errors = []
    for draw in range(DRAWS):
        torch.manual_seed(draw)
        model = nn.Sequential(
            Offset(), Block(function, gated=gated), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 10)
        )
        labels = torch.randint(10, (512,))
        seen = trace(
            model, torch.randn(512, WIDTH), loss=lambda out, labels=labels: F.cross_entropy(out, labels)
        )
        errors.append(errors_of_scale(seen, name)[place])
    return mean(errors)


def squared_relu(x: Tensor) -> Tensor:
    return F.relu(x).square()


@pytest.mark.parametrize("function", [F.relu, squared_relu, F.gelu, F.silu], ids=lambda f: f.__name__)
def test_the_gradient_of_a_norms_scale_counts_the_degree_of_the_branch(function: Callable[[Tensor], Tensor]):
    assert abs(mean_error(function)) < math.log(1.15)


def test_both_factors_of_a_gate_add_to_the_gradient_of_the_scale_with_one_sign():
    assert abs(mean_error(F.silu, gated=True)) < math.log(1.15)


@pytest.mark.parametrize(("name", "place"), [("rsqrt", 0), ("add", 1)])
def test_small_variances_count_more_in_the_gradient_of_a_variance(name: str, place: int):
    assert abs(mean_error(F.relu, name=name, place=place)) < math.log(1.2)
