"""Lean maps compute what plain layers compute and save less for the backward pass."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from leadline.nn.lean import Recomputed, lean_feed_forward, lean_linear


@pytest.mark.parametrize("bias", [True, False])
def test_lean_maps_equal_the_plain_layers_with_and_without_gradients(bias: bool):
    torch.manual_seed(0)
    first, second = nn.Linear(4, 6, bias=bias), nn.Linear(6, 4, bias=bias)
    x = torch.randn(3, 4)
    plain = second(first(x.tanh()).relu())
    lean = lean_feed_forward(first, F.relu, second, Recomputed(torch.tanh, x))
    assert torch.allclose(lean, plain, atol=1e-6)
    assert torch.allclose(lean_linear(first, Recomputed(torch.tanh, x)), first(x.tanh()), atol=1e-6)
    with torch.no_grad():
        assert torch.equal(lean_feed_forward(first, F.relu, second, Recomputed(torch.tanh, x)), plain)
        assert torch.equal(lean_linear(first, x), first(x))
