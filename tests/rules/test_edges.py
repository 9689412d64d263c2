"""What a rule says exactly at its edge, and which of several numbers it quotes."""

from __future__ import annotations

import math

import pytest
import torch
from msgspec.structs import replace
from torch import nn

import leadline
from leadline.records import Attention, Facts, Finding, Profile, Rehearsal
from leadline.rules import all_rules, attention_collapse, dominated_update, post_norm_at_depth
from leadline.rules.examples import stack_with
from leadline.rules.step_examples import stepped

RULES = {rule.code: rule for rule in all_rules()}


def findings(code: str, profile: Profile) -> list[Finding]:
    return list(RULES[code](profile))


@pytest.mark.parametrize(("share", "found"), [(0.94, 0), (0.95, 0), (0.951, 1)])
def test_one_block_dominates_a_step_only_above_nineteen_twentieths(share: float, found: int):
    assert dominated_update.NEARLY_ALL == 0.95
    assert len(findings("U505", stepped(shares=[share, *[(1 - share) / 15] * 15]))) == found


@pytest.mark.parametrize(("blocks", "found"), [(7, 0), (8, 1)])
def test_one_block_may_dominate_the_step_of_a_shallow_network(blocks: int, found: int):
    assert len(findings("U505", stepped(shares=[0.99, *[0.01 / (blocks - 1)] * (blocks - 1)]))) == found


def attending(*, purity: float = 0.1, logit_var: float | None = None, keys: int = 64, of: int = 1) -> Profile:
    """`of` attentions, of which all but the first look everywhere."""
    sharp = Attention(block=0, module="attn", keys=keys, purity=purity, uniform=1 / keys, logit_var=logit_var)
    even = Attention(block=1, module="even", keys=keys, purity=1 / keys, uniform=1 / keys, logit_var=0.0)
    return stack_with(Facts(attentions=(sharp, *(even,) * (of - 1))))


@pytest.mark.parametrize(
    ("seen", "found"),
    [
        (attending(purity=attention_collapse.ONE_KEY), 0),
        (attending(purity=attention_collapse.ONE_KEY + 1e-9), 1),
        (attending(logit_var=2 * math.log(64)), 0),
        (attending(logit_var=2 * math.log(64) + 1e-9), 1),
        (attending(purity=0.9, keys=7), 0),
        (attending(purity=0.9, keys=8), 1),
        (attending(purity=0.9, of=2), 0),
    ],
    ids=[
        "purity at the limit", "purity above", "variance at the freezing point", "variance beyond", "seven keys",
        "eight keys", "one of two",
    ],
)  # fmt: skip
def test_attention_has_collapsed_only_beyond_its_limits_and_in_most_of_the_network(seen: Profile, found: int):
    assert len(findings("F107", seen)) == found


@pytest.mark.parametrize(("sublayers", "found"), [(11, 0), (12, 1)])
def test_post_norm_is_deep_from_the_depth_on_with_which_it_was_published(sublayers: int, found: int):
    assert post_norm_at_depth.FEWEST == 12
    sick = RULES["R402"].sick
    assert len(findings("R402", replace(sick, blocks=sick.blocks[:sublayers]))) == found


def test_restless_steps_are_told_from_the_first_loss_to_the_last():
    (found,) = findings("U509", replace(stepped(), rehearsal=Rehearsal(losses=(2.3, 2.0, 9.0, 5.0))))
    assert "3 steps at rate 0.001" in found.message
    assert "from 2.3 to 5, up to 9 on the way" in found.message
    assert found.evidence == {"first": 2.3, "last": 5.0, "rise": 4.5, "steps": 3.0}


def dropping(rate: float, *, training: bool = True, around: bool = False) -> set[str]:
    torch.manual_seed(0)
    branch = nn.Sequential(nn.Linear(32, 32), nn.Dropout(rate), nn.Linear(32, 32))
    layers = [
        nn.Linear(32, 32),
        nn.ReLU(),
        nn.Linear(32, 32),
        Residual(branch) if around else nn.Dropout(rate),
    ]
    model = nn.Sequential(*layers, nn.Linear(32, 10)).train(training)
    loss = nn.CrossEntropyLoss()
    report = leadline.check(model, torch.randn(16, 32), torch.randint(10, (16,)), loss)
    return {finding.code for finding in report.findings}


class Residual(nn.Module):
    def __init__(self, branch: nn.Module) -> None:
        super().__init__()
        self.branch = branch

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.branch(x)


def test_dropout_drowns_the_signal_where_it_keeps_less_than_a_fiftieth():
    assert "F110" in dropping(0.985)
    assert "F110" not in dropping(0.97)


def test_dropout_that_is_off_or_has_a_skip_around_it_drowns_nothing():
    assert "F110" not in dropping(0.99, training=False)
    assert "F110" not in dropping(0.99, around=True)
