"""How the loss adds up its targets is read from its gradient, without a further pass."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import leadline
from tests.support.wiring import TinyGPT, classes, features, mlp, text, token_loss

IGNORED = -100
# 2 samples with 3 targets each and 2 with 16, as `uneven_text` makes them.
TARGETS, HALVES = 38, (6, 32)


def uneven_text() -> tuple[Tensor, Tensor]:
    tokens, targets = text()
    targets[:2, 3:] = IGNORED
    return tokens, targets


def mean_of_means(logits: Tensor, targets: Tensor) -> Tensor:
    return torch.stack([F.cross_entropy(*each) for each in zip(logits, targets, strict=True)]).mean()


def likelihood(logits: Tensor, targets: Tensor) -> Tensor:
    return F.nll_loss(logits.log_softmax(-1).flatten(0, 1), targets.flatten())


def summed(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")


class WithLoss(nn.Module):
    """A model that returns its loss and its scores."""

    def __init__(self, loss: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.network, self.loss = TinyGPT(), loss

    def forward(self, tokens: Tensor, labels: Tensor) -> dict[str, Tensor]:
        logits = self.network(tokens)
        return {"loss": self.loss(logits, labels), "logits": logits}


def names(report: leadline.Report) -> set[str]:
    return {each.name for each in report.findings}


@pytest.mark.parametrize(
    ("loss", "total", "ratio"),
    [
        (token_loss, 1.0, 1.0),
        (likelihood, 1.0, 1.0),
        (summed, TARGETS, 1.0),
        (mean_of_means, 1.0, 16 / 3),
        (lambda logits, targets: token_loss(logits, targets) / 4, 0.25, 1.0),
    ],
    ids=["mean", "nll_loss", "sum", "mean of means", "divided by micro-batches"],
)
def test_the_weights_of_the_targets_are_those_of_the_reduction(loss, total, ratio):
    report = leadline.check(TinyGPT(), *uneven_text(), loss)
    reduction = report.profile.question.reduction
    assert (reduction.targets, reduction.halves) == (TARGETS, HALVES)
    assert reduction.total_weight == pytest.approx(total, rel=1e-4)
    assert reduction.largest_over_smallest == pytest.approx(ratio, rel=1e-4)


@pytest.mark.parametrize(
    "loss",
    [
        lambda scores, targets: F.cross_entropy(scores, targets, weight=torch.tensor([1.0, 2.0, 3.0])),
        lambda scores, targets: (F.cross_entropy(scores, targets, reduction="none") * torch.rand(32)).mean(),
    ],
    ids=["classes", "samples"],
)
def test_a_loss_that_weighs_classes_or_samples_has_no_reduction(loss):
    report = leadline.check(mlp(), features(), classes(), loss)
    assert report.profile.question.reduction is None


def test_a_mean_over_uneven_halves_is_a_note_and_over_even_ones_is_not():
    assert "uneven-reduction" in names(leadline.check(TinyGPT(), *uneven_text(), token_loss))
    assert "uneven-reduction" not in names(leadline.check(TinyGPT(), *text(), token_loss))


def test_a_sum_inside_the_model_is_named():
    tokens, labels = uneven_text()
    batch = {"tokens": tokens, "labels": labels}
    assert "summed-loss" in names(leadline.check(WithLoss(summed), batch))
    assert "summed-loss" not in names(leadline.check(WithLoss(token_loss), batch))
