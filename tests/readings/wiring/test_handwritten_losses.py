"""Losses that are written by hand, and losses that a model returns as its only output."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import leadline
from tests.readings.wiring.test_signs import SAMPLES, WIDTH, mlp, severities
from tests.support.wiring import Function


@pytest.fixture(autouse=True)
def _same_random_numbers() -> None:
    torch.manual_seed(0)


def likelihood(scores: Tensor, targets: Tensor) -> Tensor:
    probability = torch.sigmoid(scores)
    chosen = targets * (probability + 1e-6).log() + (1 - targets) * (1 - probability + 1e-6).log()
    return -chosen.mean()


@pytest.mark.parametrize("last", [nn.Identity(), nn.Sigmoid(), nn.ReLU(), nn.Softmax(-1)])
def test_a_handwritten_loss_with_its_own_sigmoid_expects_scores(last: nn.Module):
    model = nn.Sequential(*mlp(WIDTH, 3), last)
    targets = (torch.rand(SAMPLES, 3) > 0.5).float()
    found = severities(model, torch.randn(SAMPLES, WIDTH), targets, likelihood)
    assert ("squashed-logits" in found) == (not isinstance(last, nn.Identity))


@pytest.mark.parametrize("low", [-1.0, 0.0])
def test_a_handwritten_loss_with_its_own_sigmoid_expects_labels_between_zero_and_one(low: float):
    targets = torch.where(torch.rand(SAMPLES, 3) > 0.5, 1.0, low)
    found = severities(mlp(WIDTH, 3), torch.randn(SAMPLES, WIDTH), targets, likelihood)
    assert ("unreachable-targets" in found) == (low < 0)


@pytest.mark.parametrize("sign", [1, -1])
def test_chosen_log_probabilities_must_grow(sign: int):
    def chosen(scores: Tensor, classes: Tensor) -> Tensor:
        return -sign * scores.gather(-1, classes.unsqueeze(-1)).mean()

    model = nn.Sequential(*mlp(WIDTH, 4), nn.LogSoftmax(-1))
    found = severities(model, torch.randn(SAMPLES, WIDTH), torch.randint(0, 4, (SAMPLES,)), chosen)
    assert ("negated-loss" in found) == (sign < 0)


@pytest.mark.parametrize("is_thresholded", [True, False])
def test_an_added_term_behind_a_threshold_is_constant(is_thresholded: bool):
    def loss(scores: Tensor, targets: Tensor) -> Tensor:
        probability = torch.sigmoid(scores)
        overlap = (probability > 0.5).float() if is_thresholded else probability
        return likelihood(scores, targets) - 0.5 * (overlap * targets).sum() / targets.sum()

    targets = (torch.rand(SAMPLES, 3) > 0.5).float()
    found = severities(mlp(WIDTH, 3), torch.randn(SAMPLES, WIDTH), targets, loss)
    assert ("constant-loss-term" in found) == is_thresholded


@pytest.mark.parametrize("is_column", [True, False])
def test_weights_in_a_column_make_a_table_of_errors(is_column: bool):
    def weighted(output: Tensor, targets: tuple[Tensor, Tensor]) -> Tensor:
        return ((output.squeeze(-1) - targets[0]).pow(2) * targets[1]).mean()

    weights = torch.rand(SAMPLES, 1) if is_column else torch.rand(SAMPLES)
    found = severities(mlp(WIDTH, 1), torch.randn(SAMPLES, WIDTH), (torch.randn(SAMPLES), weights), weighted)
    assert ("mixed-targets" in found) == is_column


@pytest.mark.parametrize("is_summed", [True, False])
def test_a_sum_over_samples_is_noted_for_several_outputs(is_summed: bool):
    def loss(output: tuple[Tensor, Tensor], targets: Tensor) -> Tensor:
        each = (output[0] - targets).pow(2).sum(-1) + output[1].pow(2).sum(-1)
        return each.sum() if is_summed else each.mean()

    model = Function(lambda self, x: (self.one(x), self.two(x)), one=mlp(WIDTH, 3), two=mlp(WIDTH, 3))
    report = leadline.check(model, torch.randn(SAMPLES, WIDTH), torch.randn(SAMPLES, 3), loss, rehearse=False)
    assert any(each.name == "summed-loss" for each in report.findings) == is_summed


# A model that returns nothing but its loss.


@pytest.mark.parametrize("is_mixed", [True, False])
def test_a_mean_over_the_batch_before_a_layer_belongs_to_the_network(is_mixed: bool):
    def forward(self: Function, x: Tensor, y: Tensor) -> Tensor:
        hidden = self.one(x)
        hidden = hidden - (hidden.mean(0, keepdim=True) if is_mixed else hidden.mean(1, keepdim=True))
        return (self.two(hidden).squeeze(-1) - y).pow(2).mean()

    model = Function(forward, one=mlp(WIDTH, 12), two=mlp(12, 1))
    found = severities(model, (torch.randn(SAMPLES, WIDTH), torch.randn(SAMPLES)))
    assert ("mixed-samples" in found) == is_mixed


def test_a_loss_may_compare_samples():
    def forward(self: Function, x: Tensor) -> Tensor:
        hidden = F.normalize(self.net(x), dim=-1)
        similar = hidden @ hidden.t() / 0.1
        return similar.logsumexp(1).mean() - similar.roll(1, 1).diagonal().mean()

    found = severities(Function(forward, net=mlp(WIDTH, 12)), torch.randn(SAMPLES, WIDTH))
    assert "mixed-samples" not in found


# Inputs of which little is left.


@pytest.mark.parametrize("scale", [1.0, 255.0])
def test_pictures_that_are_divided_as_integers_are_erased(scale: float):
    def forward(self: Function, x: Tensor) -> Tensor:
        whole = x.mul(200).add(20).clamp(0, 254).long()
        return self.net((whole // 255).float() if scale > 1 else whole.float() / 255)

    found = severities(
        Function(forward, net=mlp(WIDTH, 3)),
        torch.rand(SAMPLES, WIDTH),
        torch.randint(0, 3, (SAMPLES,)),
        F.cross_entropy,
    )
    assert ("idle-input" in found) == (scale > 1)


@pytest.mark.parametrize("step", [0, 1])
def test_tables_that_all_read_the_first_column_leave_the_others_out(step: int):
    def forward(self: Function, columns: Tensor) -> Tensor:
        return self.net(torch.cat([self.table(columns[:, step * index]) for index in range(4)], 1))

    model = Function(forward, table=nn.Embedding(6, 4), net=mlp(16, 3))
    columns = torch.randint(0, 6, (SAMPLES, 4))
    found = severities(model, columns, torch.randint(0, 3, (SAMPLES,)), F.cross_entropy)
    assert ("idle-input" in found) == (step == 0)


# Attention.


@pytest.mark.parametrize("power", [0.5, -0.5])
def test_logits_that_are_multiplied_by_the_root_of_the_width_are_named(power: float):
    def forward(self: Function, x: Tensor) -> Tensor:
        query, key, value = self.qkv(x).chunk(3, -1)
        return self.out((query @ key.transpose(-1, -2) * math.pow(16, power)).softmax(-1) @ value).mean(1)

    model = Function(forward, qkv=nn.Linear(WIDTH, 48), out=nn.Linear(16, 3))
    targets = torch.randint(0, 3, (SAMPLES,))
    found = severities(model, torch.randn(SAMPLES, 10, WIDTH), targets, F.cross_entropy)
    assert ("unscaled-attention" in found) == (power > 0)


# An optimizer that was built too early.


@pytest.mark.parametrize("holds_frozen", [True, False])
def test_an_optimizer_that_holds_frozen_tensors_has_missed_an_adapter(holds_frozen: bool):
    base = nn.Linear(WIDTH, 16).requires_grad_(requires_grad=False)
    model = Function(
        lambda self, x: self.head((self.base(x) + self.adapter(x)).relu()),
        base=base,
        adapter=nn.Linear(WIDTH, 16),
        head=nn.Linear(16, 3),
    )
    held = [*model.head.parameters(), *(base.parameters() if holds_frozen else ())]
    case = (model, torch.randn(SAMPLES, WIDTH), torch.randint(0, 3, (SAMPLES,)), F.cross_entropy)
    found = severities(*case, torch.optim.Adam(held, lr=1e-3))
    assert ("forgotten-parameters" in found) == holds_frozen
