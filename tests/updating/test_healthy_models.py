"""Stock models at rates that people use get no warning about their step; hopeless rates get one."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import leadline
from benchmarks import workloads
from leadline import Case, Report
from leadline.lab.demo import residual_mlp
from leadline.nn import LanguageModel
from zoo import ZOO

ABOUT_THE_STEP = ("U5", "R4")


def checked(case: Case, optimizer: torch.optim.Optimizer) -> Report:
    return leadline.check(case.model, case.inputs, case.targets, case.loss, optimizer)


def codes(report: Report, *severities: str) -> list[str]:
    found = [each for each in report.findings if each.severity in severities]
    return [each.code for each in found if each.code.startswith(ABOUT_THE_STEP)]


def gpt2() -> Case:
    pytest.importorskip("transformers")
    return workloads.gpt2(layers=4, width=64, length=32, batch=4)


def language_model() -> Case:
    torch.manual_seed(0)
    tokens = torch.randint(64, (4, 17))
    model = LanguageModel(64, 32, 2, 12)
    return Case(model, tokens[:, :-1], tokens[:, 1:], workloads.token_loss)


def mlp() -> Case:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))
    return Case(model, torch.randn(64, 16), torch.randint(4, (64,)), F.cross_entropy)


HEALTHY: dict[str, tuple[Callable[[], Case], Callable[..., torch.optim.Optimizer]]] = {
    "GPT-2, AdamW 1e-3": (gpt2, lambda p: torch.optim.AdamW(p, lr=1e-3)),
    "GPT-2, AdamW 3e-4": (gpt2, lambda p: torch.optim.AdamW(p, lr=3e-4)),
    "our language model, AdamW 3e-3": (language_model, lambda p: torch.optim.AdamW(p, lr=3e-3)),
    "Transformer encoder, Adam 1e-3": (
        lambda: workloads.transformer(layers=4, width=64, length=16, batch=4),
        lambda p: torch.optim.Adam(p, lr=1e-3),
    ),
    "ResNet, SGD 0.1": (
        lambda: workloads.conv(blocks=2, width=8, batch=16),
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=5e-4),
    ),
    "ResNet, AdamW 1e-3": (
        lambda: workloads.conv(blocks=2, width=8, batch=16),
        lambda p: torch.optim.AdamW(p, lr=1e-3),
    ),
    "MLP, Adam 1e-3": (mlp, lambda p: torch.optim.Adam(p, lr=1e-3)),
    "MLP, SGD 0.1": (mlp, lambda p: torch.optim.SGD(p, lr=0.1)),
    "MLP, RMSprop 1e-3": (mlp, lambda p: torch.optim.RMSprop(p, lr=1e-3)),
    "MLP, Adagrad 1e-2": (mlp, lambda p: torch.optim.Adagrad(p, lr=1e-2)),
}


@pytest.mark.parametrize("name", HEALTHY)
def test_a_stock_model_at_a_sane_rate_gets_no_warning_about_its_step(name: str):
    build, make = HEALTHY[name]
    case = build()
    report = checked(case, make(case.model.parameters()))
    assert report.profile.update is not None
    assert codes(report, "warning", "error") == []


def test_a_rate_a_thousand_times_too_high_is_found():
    case = mlp()
    assert "U502" in codes(
        checked(case, torch.optim.SGD(case.model.parameters(), lr=300.0)), "warning", "error"
    )


def test_many_blocks_whose_sum_is_too_long_are_found_as_an_incremental_explosion():
    torch.manual_seed(0)
    model = leadline.nn.MLP(16, 32, 48, 4, scheme="pre")
    case = Case(model, torch.randn(64, 16), torch.randint(4, (64,)), F.cross_entropy)
    report = checked(case, torch.optim.SGD(model.parameters(), lr=30.0))
    assert "U501" in codes(report, "warning", "error")


def test_a_bfloat16_model_at_a_tiny_rate_is_found():
    case = mlp()
    model = case.model.bfloat16()
    report = leadline.check(
        model,
        case.inputs.bfloat16(),
        case.targets,
        case.loss,
        torch.optim.AdamW(model.parameters(), lr=1e-6),
    )
    assert "U506" in codes(report, "warning")


def test_a_scheme_for_sgd_trained_with_adam_is_noted_and_with_sgd_is_not():
    torch.manual_seed(0)
    case = residual_mlp()  # branches scaled by 1/sqrt(N)
    assert "R411" in codes(checked(case, torch.optim.Adam(case.model.parameters(), lr=1e-4)), "info")
    assert "R411" not in codes(checked(case, torch.optim.SGD(case.model.parameters(), lr=1e-2)), "info")


def test_a_check_can_leave_the_step_out_or_insist_on_it():
    case = mlp()
    adam = torch.optim.Adam(case.model.parameters())
    arguments = (case.model, case.inputs, case.targets, case.loss)
    assert leadline.check(*arguments, adam, update=False).profile.update is None
    assert leadline.check(*arguments).profile.update is None
    with pytest.raises(leadline.InputError, match="optimiser"):
        leadline.check(*arguments, update=True)


def test_an_optimiser_of_another_model_is_a_gap_of_the_check_not_its_end():
    case = ZOO["mlp"]()
    other = torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1)
    report = checked(case, other)
    assert report.profile.update is None
    assert any(gap.what == "one step of the optimiser" for gap in report.coverage.gaps)


def test_the_page_shows_what_the_step_promises_and_gives():
    case = mlp()
    page = str(checked(case, torch.optim.Adam(case.model.parameters())))
    assert "promised" in page
    assert "by quarter of depth" in page
