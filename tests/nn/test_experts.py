"""MixtureOfExperts: the published formula, its initialization, its balance, and that it trains without alarms."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import leadline
from leadline.errors import InputError
from leadline.nn import LanguageModel, MixtureOfExperts, Options, balance_loss, param_groups
from leadline.nn.roles import fill_branch_, role_weights
from leadline.nn.transformer import FeedForward

OPTIONS = Options(experts=4, hidden=64)


def mixture(experts: int = 4, chosen: int = 2, width: int = 32) -> MixtureOfExperts:
    parts: list[nn.Module] = [FeedForward(width, options=Options(hidden=64)) for _ in range(experts)]
    made = MixtureOfExperts(width, parts, chosen=chosen)
    fill_branch_(made, "unit", generator=torch.Generator().manual_seed(0))
    return made


def test_the_output_is_the_gated_sum_of_the_chosen_experts():
    made, x = mixture(), torch.randn(3, 5, 32)
    expected = torch.zeros_like(x)
    for i in range(3):
        for j in range(5):
            top, choices = (made.router(x[i, j])).topk(2)
            for gate, choice in zip(top.softmax(-1), choices, strict=True):
                expected[i, j] += gate * made.experts[choice](x[i, j])
    torch.testing.assert_close(made(x), expected, atol=1e-5, rtol=1e-4)


def test_one_expert_is_the_plain_feed_forward():
    made, x = mixture(experts=1, chosen=1), torch.randn(7, 32)
    torch.testing.assert_close(made(x), made.experts[0](x))
    assert float(made.balance.detach()) == pytest.approx(1)


@pytest.mark.parametrize("chosen", [1, 2, 4])
def test_a_unit_input_gives_a_unit_output(chosen: int):
    made = mixture(experts=8, chosen=chosen, width=256)
    out = made(torch.randn(512, 256, generator=torch.Generator().manual_seed(1)))
    assert float(out.detach().square().mean()) == pytest.approx(1, rel=0.25)


def test_the_balance_is_one_for_an_even_load_and_grows_to_the_number_of_experts():
    made, x = mixture(chosen=1), torch.randn(4096, 32).abs()
    nn.init.zeros_(made.router.weight)
    with torch.no_grad():
        made.router.weight[0] += 10.0
    made(x)
    assert float(made.balance.detach()) == pytest.approx(4, rel=1e-3)


def test_following_the_balance_alone_evens_the_load():
    made, x = mixture(chosen=1), torch.randn(512, 32) + 0.5
    optimizer = torch.optim.SGD(made.router.parameters(), lr=0.5)
    for _ in range(60):
        made(x)
        optimizer.zero_grad()
        made.balance.backward()
        optimizer.step()
    load = torch.bincount(made.router(x).argmax(-1), minlength=4) / 512
    assert float(load.max()) < 0.4


def test_a_copy_after_a_pass_has_no_graph():
    made = mixture()
    made(torch.randn(3, 32))
    assert copy.deepcopy(made).balance is None


def test_balance_without_a_pass_is_refused():
    with pytest.raises(InputError, match="forward pass"):
        balance_loss(nn.Linear(2, 2))
    with pytest.raises(InputError, match="chosen"):
        mixture(experts=2, chosen=3)


def test_experts_side_by_side_count_once_for_the_length_of_a_path():
    parts = role_weights(mixture())
    assert [part.role for part in parts if not part.is_parallel] == ["router", "fc1", "fc2"]


def test_the_router_is_not_given_to_muon():
    model = LanguageModel(11, 32, 2, 2, options=OPTIONS)
    groups = param_groups(model, None, "muon", lr=0.01)
    named = {id(p): name for name, p in model.named_parameters()}
    muon = {named[id(p)] for group in groups.muon for p in group["params"]}
    assert not any("router" in name for name in muon)
    assert sum("experts" in name for name in muon) == 2 * 4 * 2


def loss_of(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def test_a_model_with_experts_trains_gets_no_warning_and_shows_the_load_of_each_expert():
    torch.manual_seed(0)
    model = LanguageModel(17, 32, 2, 2, scheme="pre", max_len=16, options=OPTIONS)
    tokens = torch.randint(0, 17, (8, 16))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    def with_balance(logits: Tensor, targets: Tensor) -> Tensor:
        return loss_of(logits, targets) + 0.01 * balance_loss(model)

    report = leadline.check(model, tokens, tokens.roll(-1, 1), with_balance, optimizer, rehearse=False)
    assert [(each.code, each.message) for each in report.findings if each.severity != "info"] == []
    routers = report.profile.parts.routers
    assert len(routers) == 2
    assert all(each.experts == 4 and sum(each.load) == 8 * 16 * 2 for each in routers)
    assert all(each.is_balanced for each in routers)
    losses = []
    for _ in range(25):
        loss = with_balance(model(tokens), tokens.roll(-1, 1))
        losses.append(float(loss.detach()))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert losses[-1] < 0.8 * losses[0]
