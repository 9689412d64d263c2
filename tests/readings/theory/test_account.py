"""The account of a prediction: what it covers, and where theory and measurement part first and why."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

import leadline
from leadline.readings.theory import forward, predict_with_account
from leadline.readings.theory.moment_rule import MomentRule, single_output
from leadline.readings.theory.prediction import predict
from leadline.readings.theory.signal import constant_signal
from leadline.records import Theory
from leadline.report.look import Look
from leadline.report.pages import page_of
from leadline.report.render.text import render
from leadline.tracer.trace import trace

WIDTH = 64


def account(model: nn.Module, inputs: Tensor) -> Theory:
    return predict_with_account(trace(model, inputs, loss=lambda out: out.square().mean()))[1]


def plain(depth: int = 4) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(layer for _ in range(depth) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())))


def test_theory_agrees_with_a_plain_network_in_the_forward_pass():
    found = account(plain(), torch.randn(64, WIDTH))
    assert found.forward_parting is None
    assert found.with_rule == found.ops
    assert found.forward is not None
    assert found.forward.median < 0.1


class Aligned(nn.Module):
    """The weights of the second layer are made of the first: not independent of the signal they read."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        with torch.no_grad():
            self.second.weight.copy_(self.first.weight.T)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x))


def test_weights_that_depend_on_the_signal_are_the_first_disagreement():
    found = account(Aligned(), torch.randn(64, WIDTH))
    assert found.forward_parting is not None
    assert (found.forward_parting.module, found.forward_parting.name) == ("second", "linear")
    assert found.forward_parting.factor == pytest.approx(2.0, rel=0.2)
    assert "copy" in found.forward_parting.assumption


def test_ops_after_the_first_disagreement_are_not_blamed():
    model = nn.Sequential(Aligned(), copy.deepcopy(plain(1)))
    found = account(model, torch.randn(64, WIDTH))
    assert found.forward_parting is not None
    assert found.forward_parting.module == "0.second"


def test_an_op_without_a_rule_is_counted_by_name():
    class Strange(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(WIDTH, WIDTH)

        def forward(self, x: Tensor) -> Tensor:
            return torch.special.i0(self.layer(x))

    found = account(Strange(), torch.randn(8, WIDTH))
    assert sum(found.without.values()) == found.ops - found.with_rule == 1
    assert found.anchored[0].endswith("special_i0")


def test_check_shows_theory_next_to_measurement():
    report = leadline.check(plain(8), torch.randn(64, WIDTH), loss=lambda out: out.square().mean())
    assert report.profile.theory is not None
    assert report.profile.depth_scale is not None
    assert report.profile.depth_scale.phase == "ordered"
    assert report.profile.blocks[1].forward_ms_predicted == pytest.approx(
        report.profile.blocks[1].forward_ms, rel=0.3
    )
    assert report.profile.blocks[1].band is not None
    assert "theory     predicts" in render(page_of(report), Look(detail="everything"))
    assert leadline.Report.from_json(report.to_json()) == report


def test_a_rule_that_gives_another_shape_than_the_op_is_refused(monkeypatch: pytest.MonkeyPatch):
    wrong = MomentRule(
        name="wrong",
        apply=lambda call: single_output(constant_signal((3,), 1.0), lambda grads: {}),
        assumes="",
    )
    monkeypatch.setattr(forward, "find_moment_rule", lambda name: wrong)
    seen = trace(plain(1), torch.randn(8, WIDTH), loss=lambda out: out.square().mean())
    refusals = predict(seen).forward.refusals
    assert len(refusals) == len(seen.ops)
    assert "the rule gives shape (3,), the op gave (8, 64)" in refusals.values()
