"""N705 on real passes in float16: a scale that fits is let pass, one that does not is named."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import leadline


def findings(scale: float, shrink: float = 1.0) -> dict[str, leadline.Finding]:
    """A classifier in float16 whose loss is scaled; `shrink` makes its gradients small."""
    torch.manual_seed(0)
    hidden = [layer for _ in range(4) for layer in (nn.Linear(64, 64), nn.ReLU())]
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), *hidden, nn.Linear(64, 10)).half()

    def loss(output: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(output.float() * shrink, targets) * scale

    report = leadline.check(model, torch.randn(32, 16).half(), torch.randint(10, (32,)), loss)
    return {finding.code: finding for finding in report.findings}


def test_a_loss_scale_that_fits_is_not_reported():
    assert "N705" not in findings(2.0**10)


def test_a_scale_at_which_gradients_overflow_is_too_high():
    found = findings(2.0**24)
    assert "too high" in found["N705"].message
    assert found["N701"].explained_by == "N705"


def test_a_scale_at_which_gradients_still_vanish_is_too_low():
    found = findings(2.0**4, shrink=1e-5)
    assert "2^4" in found["N705"].message
    assert "too low" in found["N705"].message


@pytest.mark.parametrize("scale", [1.0, 3.0, 100.0])
def test_a_weighted_loss_is_not_taken_for_a_scaled_one(scale: float):
    assert "N705" not in findings(scale, shrink=1e-5)
