"""Only a loss that falls without end when an output grows is called unbounded."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import leadline


def severities(report):
    return {each.name: each.severity for each in report.findings}


class Spread(nn.Module):
    """Two heads: a mean, and the logarithm of a variance."""

    def __init__(self):
        super().__init__()
        self.body, self.mean, self.log_variance = nn.Linear(8, 16), nn.Linear(16, 1), nn.Linear(16, 1)

    def forward(self, x):
        hidden = self.body(x).relu()
        return self.mean(hidden), self.log_variance(hidden)


def likelihood(output, y):
    mean, log_variance = output
    return (log_variance + (y - mean).square() / log_variance.exp()).mean()


def with_divergence(sign):
    def loss(output, y):
        mean, log_variance = output
        divergence = (mean.square() + log_variance.exp() - log_variance - 1).mean() / 2
        return F.l1_loss(mean, y) + sign * divergence

    return loss


@pytest.mark.parametrize(
    ("loss", "is_unbounded"),
    [
        (likelihood, False),
        (with_divergence(1), False),
        (with_divergence(-1), True),
        (lambda output, y: F.mse_loss(output[0], 1e4 + y), False),
        (lambda output, y: -output[0].mean() + F.mse_loss(output[1], y), False),  # a score that is maximized
        (lambda output, y: F.mse_loss(output[0], y) - 0.01 * output[1].square().mean(), True),
        (lambda output, y: F.binary_cross_entropy(output[0].sigmoid(), y.sigmoid()), False),
        (
            lambda output, y: F.mse_loss(output[0], y) + output[0].norm() * 0 - output[1].norm(dim=-1).mean(),
            False,
        ),
    ],
)
def test_only_a_loss_that_falls_faster_and_faster_without_end_is_unbounded(loss, is_unbounded):
    torch.manual_seed(0)
    report = leadline.check(Spread(), torch.randn(32, 8), torch.randn(32, 1), loss)
    assert ("unbounded-loss" in severities(report)) == is_unbounded


def test_an_output_that_the_loss_refuses_to_see_enlarged_does_not_hide_another():
    class Refusing(Spread):
        def forward(self, x):
            mean, log_variance = super().forward(x)
            return mean.sigmoid(), log_variance

    def loss(output, y):
        return F.binary_cross_entropy(output[0], y) - output[1].exp().mean()

    torch.manual_seed(0)
    report = leadline.check(Refusing(), torch.randn(32, 8), torch.rand(32, 1), loss)
    assert severities(report).get("unbounded-loss") == "error"
