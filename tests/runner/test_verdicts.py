"""Verdicts on steps as programs make them: what healthy programs must not be told."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import leadline
from tests.support.program_runs import PROGRAMS


class Autocast(nn.Module):
    """A model whose forward pass runs in bfloat16, as under `torch.autocast`."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, tokens, targets):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return self.model(tokens, targets)


@pytest.fixture(scope="module")
def language_model():
    """The class of one of the programs, without its loop."""
    source = (PROGRAMS / "language_model.py").read_text().partition("data = ")[0]
    names = {"__name__": "program"}
    exec(compile(source, "program", "exec"), names)
    return names["GPT"]


def test_a_fresh_model_in_half_precision_is_not_said_to_ignore_its_past_or_its_order(language_model):
    torch.manual_seed(0)
    text = torch.randint(0, 64, (8, 33))
    model = Autocast(language_model())
    report = leadline.check(
        model, (text[:, :-1].contiguous(), text[:, 1:].contiguous()), loss=lambda output: output[1]
    )
    assert {"D903", "D904"}.isdisjoint(finding.code for finding in report.findings)


def test_one_output_unit_is_not_a_collapsed_rank():
    torch.manual_seed(0)
    critic = nn.Sequential(nn.Linear(32, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1), nn.Sigmoid())

    class TwoBatches(nn.Module):
        def __init__(self):
            super().__init__()
            self.critic = critic

        def forward(self, real, fake):
            return self.critic(real), self.critic(fake)

    def loss(outputs):
        return -(outputs[0].log().mean() + (1 - outputs[1]).log().mean())

    report = leadline.check(TwoBatches(), (torch.randn(24, 32), torch.randn(24, 32) + 1), loss=loss)
    assert "F106" not in [finding.code for finding in report.findings]


def test_probabilities_of_targets_that_are_all_alike_have_no_constant_to_beat():
    torch.manual_seed(0)
    critic = nn.Sequential(nn.Linear(32, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1), nn.Sigmoid())
    optimizer = torch.optim.Adam(critic.parameters(), lr=2e-4)
    report = leadline.check(critic, torch.randn(24, 32), torch.ones(24, 1), nn.BCELoss(), optimizer)
    assert report.profile.rehearsal.constant is None


def test_a_check_inside_of_a_step_hook_leaves_the_hooks_as_they_are():
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    calls = []

    def check(*_):
        leadline.check(model, torch.randn(8, 4), loss=lambda y: y.square().mean(), optimizer=optimizer)

    optimizer.register_step_pre_hook(check)
    optimizer.register_step_pre_hook(lambda *_: calls.append("after"))
    model(torch.randn(8, 4)).square().mean().backward()
    optimizer.step()
    assert calls == ["after"]
