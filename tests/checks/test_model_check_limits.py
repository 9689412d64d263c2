"""What a model check says exactly at its limit, and which of several numbers it quotes."""

from __future__ import annotations

import math

import pytest
import torch
from msgspec.structs import replace
from torch import nn

import leadline
from leadline.checks import model_checks
from leadline.checks._examples import (
    each_block,
    geometric,
    residual,
    stack_with,
    stack_with_likeness,
    stack_with_update,
    weight,
)
from leadline.checks._laws import scaled_init_ratio
from leadline.checks.model import attention_collapse
from leadline.records import Attention, Attribution, Factor, Finding, Head, ModelFacts, Profile, Rehearsal
from tests.support.check_laws import wording_violations

CHECKS = {check.code: check for check in model_checks()}


def findings(code: str, profile: Profile) -> list[Finding]:
    """The findings of one check, whose wording keeps the laws."""
    found = list(CHECKS[code](profile))
    assert [wording_violations(each) for each in found] == [[]] * len(found)
    return found


@pytest.mark.parametrize(("share", "found"), [(0.94, 0), (0.95, 0), (0.951, 1)])
def test_one_block_dominates_a_step_only_above_95_percent(share: float, found: int):
    assert len(findings("U505", stack_with_update(shares=[share, *[(1 - share) / 15] * 15]))) == found


@pytest.mark.parametrize(("blocks", "found"), [(7, 0), (8, 1)])
def test_one_block_may_dominate_the_step_of_a_shallow_network(blocks: int, found: int):
    assert (
        len(findings("U505", stack_with_update(shares=[0.99, *[0.01 / (blocks - 1)] * (blocks - 1)])))
        == found
    )


def attending(*, purity: float = 0.1, logit_var: float | None = None, keys: int = 64, of: int = 1) -> Profile:
    """`of` attentions, of which all but the first look everywhere."""
    sharp = Attention(block=0, module="attn", keys=keys, purity=purity, uniform=1 / keys, logit_var=logit_var)
    even = Attention(block=1, module="even", keys=keys, purity=1 / keys, uniform=1 / keys, logit_var=0.0)
    return stack_with(ModelFacts(attentions=(sharp, *(even,) * (of - 1))))


@pytest.mark.parametrize(
    ("seen", "found"),
    [
        (attending(purity=attention_collapse.MAX_PURITY), 0),
        (attending(purity=attention_collapse.MAX_PURITY + 1e-9), 1),
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
    sick = CHECKS["R402"].sick
    assert len(findings("R402", replace(sick, blocks=sick.blocks[:sublayers]))) == found


@pytest.mark.parametrize(
    ("correlations", "found"), [([0.1, 0.5, 0.99], 0), ([0.1, 0.5, 0.8, 0.99], 1), ([0.1, 0.5, 0.8, 0.9], 0)]
)
def test_samples_collapse_only_over_some_depth(correlations: list[float], found: int):
    assert len(findings("F106", stack_with_likeness(correlations))) == found


def test_restless_steps_give_the_first_loss_the_last_and_the_peak():
    (found,) = findings(
        "U509", replace(stack_with_update(), rehearsal=Rehearsal(losses=(2.3, 2.0, 9.0, 5.0)))
    )
    assert "3 steps at learning rate 0.001" in found.message
    assert "from 2.3 to 5: it was up to 9" in found.message
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


def test_dropout_drowns_the_signal_if_it_keeps_less_than_two_percent():
    assert "F110" in dropping(0.985)
    assert "F110" not in dropping(0.97)


def test_dropout_that_is_off_or_has_a_skip_around_it_drowns_nothing():
    assert "F110" not in dropping(0.99, training=False)
    assert "F110" not in dropping(0.99, around=True)


def deep_normed(*, last: float, query: float, value: float) -> Profile:
    """24 post-norm sub-layers with DeepNorm's alpha on the skip, and weights of these gains."""
    alpha = 24**0.25
    plain = each_block(geometric(blocks=24), residual=residual(placement="post", skip_scale=alpha))
    roles = {"output": (last, True), "query": (query, False), "value": (value, False)}
    weights = tuple(
        weight(0, name=f"{role}.weight", role=role, residual=True, last=is_last, variance=gain)
        for role, (gain, is_last) in roles.items()
    )
    return replace(plain, facts=ModelFacts(weights=weights))


@pytest.mark.parametrize(
    ("gains", "words"),
    [
        ({"last": 0.1, "query": 1.0, "value": 1.0}, []),
        ({"last": 2.0, "query": 1.0, "value": 1.0}, ["beta is missing"]),
        ({"last": 0.1, "query": 0.05, "value": 1.0}, ["on the wrong matrices"]),
    ],
    ids=["as published", "no beta", "beta on queries"],
)
def test_deepnorms_beta_belongs_on_values_and_outputs(gains: dict[str, float], words: list[str]):
    found = [each.message for each in findings("I305", deep_normed(**gains)) if each.severity == "info"]
    assert len(found) == len(words)
    assert all(word in said for word, said in zip(words, found, strict=True))


@pytest.mark.parametrize(
    ("loss", "own"), [("cross_entropy", "softmax"), ("binary_cross_entropy_with_logits", "sigmoid")]
)
def test_squashed_logits_name_what_the_loss_applies_itself(loss: str, own: str):
    head = Head(loss=loss, value=2.3, classes=10, logit_ms=0.01, logit_max=0.2, behind="sigmoid")
    (found,) = findings("I309", stack_with(ModelFacts(head=head)))
    assert f"its own {own}" in found.message


def test_a_gradient_that_shrinks_in_a_shared_recurrence_is_a_note():
    shared = each_block(geometric(blocks=64, grad_gain=0.87), params=("cell.weight",))
    (apart,) = findings("B201", geometric(blocks=64, grad_gain=0.87))
    (alike,) = findings("B201", shared)
    assert (apart.severity, alike.severity) == ("warning", "info")


def test_kinds_that_work_against_each_other_are_listed_as_factors():
    parts = {"norm": 3.0, "scale": 0.5}
    factors = tuple(
        Factor(block=block, kind=kind, op=kind, backward=math.log(gain))
        for block in range(40)
        for kind, gain in parts.items()
    )
    (found,) = findings(
        "B202", replace(geometric(blocks=40, grad_gain=1.5), attribution=Attribution(factors=factors))
    )
    assert "factors per block are the norms 3, scales and biases 0.5" in found.message


def test_a_step_uphill_is_not_reported_in_the_middle_of_training():
    uphill = {"predicted_loss_change": 0.1, "measured_loss_change": 0.1}
    assert findings("U507", stack_with_update(**uphill)) != []
    assert findings("U507", stack_with_update(**uphill, steps=10)) == []


def test_two_post_norm_blocks_are_enough_to_see_alpha_on_the_branch():
    branch = residual(placement="post", skip_scale=1.0, branch_scale=2.0)
    pair = each_block(geometric(blocks=24), residual=branch)
    assert findings("I305", replace(pair, blocks=pair.blocks[:2])) != []
    assert findings("I305", replace(pair, blocks=pair.blocks[:1])) == []


@pytest.mark.parametrize(("scale", "found"), [(1.2, False), (1.21, True)])
def test_a_branch_is_scaled_up_only_beyond_what_one_layer_of_deepnorm_has(scale: float, found: bool):
    blocks = each_block(geometric(blocks=24), residual=residual(placement="post", branch_scale=scale))
    assert bool(findings("I305", blocks)) == found


@pytest.mark.parametrize(("alpha", "found"), [(1.2, False), (1.21, True)])
def test_a_skip_is_scaled_only_beyond_what_one_layer_of_deepnorm_has(alpha: float, found: bool):
    wide = deep_normed(last=0.1, query=0.01, value=1.0)
    blocks = each_block(wide, residual=residual(placement="post", skip_scale=alpha))
    assert bool(findings("I305", blocks)) == found


@pytest.mark.parametrize(("gradient", "found"), [(1.0, False), (0.0, True)])
def test_a_constant_matrix_is_tolerated_if_a_gradient_passes_on_another_path(gradient: float, found: bool):
    zeros = ModelFacts(weights=(weight(0), weight(1, constant=True, variance=0.0), weight(2)))
    around = each_block(stack_with(zeros), bypassed=True, backward_ms=gradient)
    assert bool(findings("I304", around)) == found


@pytest.mark.parametrize(
    ("step", "words"),
    [
        ({"lr": 0.0}, "its learning rate is 0"),
        ({"grad_square": 0.0}, "the gradient of all"),
        ({"grad_square": 0.0, "steps": 5}, "the gradient of all"),
        ({"grad_square": 0.0, "steps": 5, "loss": 0.0}, ""),
        ({"grad_square": 0.0, "steps": 5, "loss": 1.0}, "the gradient of all"),
    ],
    ids=str,
)
def test_a_step_that_learns_nothing_says_why_unless_the_loss_is_zero_in_training(
    step: dict[str, float], words: str
):
    found = [each.message for each in findings("U508", stack_with_update(**step))]
    assert len(found) == bool(words)
    assert all(words in each for each in found)


def test_twice_scaled_branches_are_named_from_the_first_to_the_last():
    sick = CHECKS["I306"].sick
    (found,) = findings("I306", sick)
    assert found.where == f"{sick.blocks[0].name} … {sick.blocks[-1].name}"


def test_one_useless_bias_is_named_and_several_are_named_from_first_to_last():
    lost = [weight(index, norm="batch_norm", bias=f"layers.{index}.bias") for index in range(3)]
    (one,) = findings("I307", stack_with(ModelFacts(weights=(lost[0],))))
    assert (one.where, one.message.split(":")[0]) == ("layers.0.bias", "1 bias has no effect")
    (several,) = findings("I307", stack_with(ModelFacts(weights=tuple(lost))))
    assert (several.where, several.message.split(":")[0]) == (
        "layers.0.bias … layers.2.bias",
        "3 biases have no effect",
    )


def test_post_norm_is_reported_from_the_first_such_block_to_the_last():
    sick = CHECKS["R402"].sick
    (found,) = findings("R402", sick)
    assert found.layers == (0, len(sick.blocks) - 1)
    assert found.where == f"{sick.blocks[0].name} … {sick.blocks[-1].name}"


def test_last_weights_are_compared_only_if_there_are_others():
    alone = stack_with(ModelFacts(weights=(weight(residual=True, last=True),)))
    assert scaled_init_ratio(alone, 8) is None
    both = stack_with(
        ModelFacts(weights=(weight(residual=True, last=True, variance=1 / 8), weight(residual=True)))
    )
    assert scaled_init_ratio(both, 8) == pytest.approx(1 / 8)


def test_a_single_dead_branch_is_not_reported():
    sick = CHECKS["R404"].sick
    healthy = each_block(sick, residual=residual())
    one = replace(healthy, blocks=(sick.blocks[0], *healthy.blocks[1:]))
    assert findings("R404", sick) != []
    assert findings("R404", one) == []


def test_coupled_decay_that_outweighs_the_gradient_is_a_warning():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
    inputs, targets = torch.randn(64, 8), torch.randn(64, 1)
    severities = []
    for decay in (1e-4, 10.0):
        adam = torch.optim.Adam(model.parameters(), lr=1e-3, weight_decay=decay)
        report = leadline.check(model, inputs, targets, nn.functional.mse_loss, adam)
        severities += [each.severity for each in report.findings if each.code == "W605"]
    assert severities == ["info", "warning"]


def test_no_more_than_all_weights_are_the_same_after_a_step():
    """In half precision the norm of a small gradient is zero, although its entries are not."""
    profile = stack_with_update()
    first, *others = profile.update.parameters
    lost = replace(first, swallowed=1.0, grad_norm=0.0, count=10 * first.count)
    profile = replace(profile, update=replace(profile.update, parameters=(lost, *others)))
    (found,) = [
        each for check in model_checks() if check.name == "swallowed-update" for each in check(profile)
    ]
    assert found.evidence["swallowed"] <= 1
