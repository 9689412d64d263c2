"""Readings of recurrences and losses in their common spellings."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import leadline
from leadline.errors import InputError
from leadline.readings.attribution import UNKNOWN, predict_gains
from leadline.tracer.calls import copy_without_dispatch
from leadline.tracer.inputs import explain_embedding_error
from leadline.tracer.trace import trace


class RecurrentClassifier(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.cell, self.head = nn.RNN(6, 16, nonlinearity=kind, batch_first=True), nn.Linear(16, 3)

    def forward(self, x):
        return self.head(self.cell(x)[0][:, -1])


@pytest.mark.parametrize("kind", ["relu", "tanh"])
def test_the_gain_of_a_fused_recurrence_is_read_off_its_states(kind: str):
    torch.manual_seed(0)
    report = leadline.check(
        RecurrentClassifier(kind), torch.randn(8, 10, 6), torch.randint(3, (8,)), F.cross_entropy
    )
    (seen,) = report.profile.facts.recurrences
    assert (seen.op, seen.steps) == (f"rnn_{kind}", 10)
    assert 0 < seen.slope_ms <= 1


def test_a_loss_of_log_probabilities_is_judged_by_the_logits_in_front_of_them():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3), nn.LogSoftmax(-1))
    head = leadline.check(model, torch.randn(8, 4), torch.randint(3, (8,)), F.nll_loss).profile.facts.head
    assert head.loss.startswith("nll_loss")
    assert head.behind == ""
    assert 0 < head.logit_ms < 5


@pytest.mark.parametrize("reduction", ["sum", "none"])
@pytest.mark.parametrize("weight", [None, torch.tensor([1.0, 2.0, 3.0])])
def test_a_loss_that_is_no_mean_is_read_as_the_mean_of_its_targets(
    reduction: str, weight: torch.Tensor | None
):
    torch.manual_seed(0)
    model, x, y = nn.Linear(4, 3), torch.randn(8, 4), torch.tensor([0, 1, 2, -100, 2, 1, -100, 0])

    def divided_later(output: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(output, targets, weight=weight, reduction=reduction).sum() / 3

    head = leadline.check(model, x, y, divided_later).profile.facts.head
    assert head.mean == pytest.approx(F.cross_entropy(model(x), y, weight=weight).item(), rel=1e-6)


def test_an_op_without_a_formula_has_no_gain_and_an_rms_norm_has_one():
    model = nn.Sequential(nn.Linear(4, 8), nn.RMSNorm(8), nn.Linear(8, 3))
    seen = trace(model, torch.randn(8, 4), torch.randint(3, (8,)), F.cross_entropy)
    parameters = {each.name: each for each in seen.parameters}
    norm = next(op for op in seen.ops if op.kind == "norm")
    last = next(op for op in seen.ops if op.kind == "loss")
    assert predict_gains(norm, seen.values[norm.inputs[0]], parameters).forward is not None
    assert predict_gains(last, seen.values[last.inputs[0]], parameters) == UNKNOWN


def test_only_torch_functions_that_are_written_in_python_are_looked_into():
    assert copy_without_dispatch(torch.relu) is None
    assert copy_without_dispatch(len) is None
    assert copy_without_dispatch(test_only_torch_functions_that_are_written_in_python_are_looked_into) is None
    assert copy_without_dispatch(F.multi_head_attention_forward) is not None


def test_an_index_error_that_is_not_about_the_table_is_left_as_it_is():
    table = nn.Embedding(3, 2)
    with pytest.raises(IndexError) as caught:
        F.embedding(torch.tensor([5]), table.weight)
    assert "3 rows" in explain_embedding_error(caught.value, table).expected
    assert explain_embedding_error(IndexError("of another"), table) is None
    with pytest.raises(InputError, match="ids from 0 to 2"):
        trace(nn.Sequential(table), torch.tensor([5]), loss=lambda y: y.sum())
