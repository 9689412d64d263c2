"""Adapters on a frozen network are a method, not a mistake."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import leadline
from tests.support.wiring import classes, features


class Adapted(nn.Module):
    """A frozen layer with a low-rank term of raw parameters."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.base = nn.Linear(inputs, outputs).requires_grad_(requires_grad=False)
        self.a = nn.Parameter(torch.randn(4, inputs) / inputs**0.5)
        self.b = nn.Parameter(torch.zeros(outputs, 4))

    def forward(self, x):
        return self.base(x) + x @ self.a.t() @ self.b.t()


@pytest.mark.parametrize("with_optimizer", [False, True])
def test_raw_low_rank_factors_on_a_frozen_network_are_trained_matrices(with_optimizer):
    torch.manual_seed(0)
    model = nn.Sequential(Adapted(8, 16), nn.ReLU(), Adapted(16, 16), nn.ReLU(), Adapted(16, 3))
    trained = [each for each in model.parameters() if each.requires_grad]
    optimizer = torch.optim.Adam(trained, lr=1e-2) if with_optimizer else None
    report = leadline.check(model, features(), classes(), F.cross_entropy, optimizer)
    assert "B208" not in [each.code for each in report.findings]
    assert report.verdict == "trains"


def test_biases_alone_are_still_reported():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
    for part in (model[0], model[2]):
        part.weight.requires_grad_(requires_grad=False)
    report = leadline.check(model, features(), classes(), F.cross_entropy)
    assert "B208" in [each.code for each in report.findings]
