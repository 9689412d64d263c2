"""Stock models at common rates get no finding about their step; hopeless rates get one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import leadline
from benchmarks import workloads
from leadline import Case, Report
from leadline.lab.demo import residual_mlp
from leadline.nn import LanguageModel
from leadline.report.look import Look
from leadline.report.pages import page_of
from leadline.report.render.text import render

pytestmark = pytest.mark.long

ABOUT_THE_STEP = ("U5", "R4")


def check(case: Case, optimizer: torch.optim.Optimizer) -> Report:
    return leadline.check(case.model, case.inputs, case.targets, case.loss, optimizer)


def codes(report: Report, *severities: str) -> list[str]:
    found = [each for each in report.findings if each.severity in severities]
    return [each.code for each in found if each.code.startswith(ABOUT_THE_STEP)]


def message(report: Report, code: str) -> str:
    return next(each.message for each in report.findings if each.code == code)


def action(report: Report, code: str) -> str:
    return next(each.action for each in report.findings if each.code == code)


def verbose_page(report: Report) -> str:
    return render(page_of(report), Look(detail="everything"))


def gpt2() -> Case:
    pytest.importorskip("transformers")
    return workloads.gpt2(layers=4, width=64, length=32, batch=4)


class Logits(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.model(x).logits


def resnet(size: int, batch: int) -> Case:
    """A ResNet that learns although its first step achieves only 1/6 to 1/200 of the predicted decrease."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.ResNetConfig(
        embedding_size=16, hidden_sizes=[16, 32, 64, 64], depths=[2] * 4, layer_type="basic", num_labels=10
    )
    model = Logits(transformers.ResNetForImageClassification(config))
    return Case(model, torch.randn(batch, 3, size, size), torch.randint(10, (batch,)), F.cross_entropy)


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
    "leadline.nn language model, AdamW 3e-3": (language_model, lambda p: torch.optim.AdamW(p, lr=3e-3)),
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
def test_a_stock_model_at_a_common_rate_gets_no_finding_about_its_step(name: str):
    build, make = HEALTHY[name]
    case = build()
    report = check(case, make(case.model.parameters()))
    assert report.profile.update is not None
    assert codes(report, "warning", "error") == []


@pytest.mark.parametrize(
    ("size", "batch"),
    [pytest.param(96, 16, marks=pytest.mark.slow), pytest.param(64, 16, marks=pytest.mark.slow), (32, 8)],
)
def test_a_step_that_lowers_the_loss_by_a_quarter_is_not_reported_as_too_long(size: int, batch: int):
    case = resnet(size, batch)
    sgd = torch.optim.SGD(case.model.parameters(), lr=0.05, momentum=0.9)
    report = check(case, sgd)
    assert report.profile.update.measured_loss_change < -0.25 * report.profile.update.loss
    assert report.profile.update.lr > 10 * report.profile.update.safe_lr
    assert not {"U501", "U502"} & set(codes(report, "warning", "error"))
    for _ in range(15):
        sgd.zero_grad()
        case.loss(case.model(case.inputs), case.targets).backward()
        sgd.step()
    assert case.loss(case.model(case.inputs), case.targets).item() < 0.1


def test_gradient_ascent_is_an_error():
    case = mlp()
    up = torch.optim.SGD(case.model.parameters(), lr=0.1, maximize=True)
    assert "U507" in codes(check(case, up), "error")
    case.loss(case.model(case.inputs), case.targets).backward()
    up.step()
    assert "U507" in codes(check(case, up), "error")


def test_a_zero_rate_and_a_zero_gradient_are_distinguished():
    case = mlp()
    still = check(case, torch.optim.Adam(case.model.parameters(), lr=0.0))
    assert "its learning rate is 0" in message(still, "U508")
    assert "U508" in codes(still, "warning")
    flat = replace(case, loss=lambda y, targets: (y * 0).sum())
    stuck = check(flat, torch.optim.Adam(case.model.parameters()))
    assert "is exactly 0" in message(stuck, "U508")


def test_a_rate_of_zero_is_a_note_where_a_scheduler_will_raise_it():
    case = mlp()
    adam = torch.optim.Adam(case.model.parameters(), lr=0.1)
    torch.optim.lr_scheduler.LambdaLR(adam, lambda step: step / 10)
    assert "U508" in codes(check(case, adam), "info")


def test_the_advice_on_a_swallowed_step_depends_on_its_cause():
    case = mlp()
    tiny = check(case, torch.optim.Adam(case.model.parameters(), lr=1e-12))
    assert "Raise the learning rate" in action(tiny, "U506")
    assert "float32" not in action(tiny, "U506")
    faint = replace(case, loss=lambda y, targets: 1e-9 * F.cross_entropy(y, targets))
    vanished = check(faint, torch.optim.SGD(case.model.parameters(), lr=10.0))
    assert "gradient vanishes" in action(vanished, "U506")


def test_the_report_marks_a_safe_rate_that_is_only_a_bound():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    case = Case(model, torch.randn(8, 4), loss=lambda y: y.mean())
    report = check(case, torch.optim.SGD(model[1].parameters(), lr=0.01))
    assert report.profile.update.safe_lr_is_bound
    assert "safe rate ≥ " in verbose_page(report)


def test_a_rate_a_thousand_times_too_high_is_reported():
    case = mlp()
    assert "U502" in codes(
        check(case, torch.optim.SGD(case.model.parameters(), lr=300.0)), "warning", "error"
    )


def test_too_many_large_block_steps_are_reported_as_an_incremental_explosion():
    torch.manual_seed(0)
    model = leadline.nn.MLP(16, 32, 48, 4, scheme="pre")
    case = Case(model, torch.randn(64, 16), torch.randint(4, (64,)), F.cross_entropy)
    report = check(case, torch.optim.SGD(model.parameters(), lr=30.0))
    assert "U501" in codes(report, "warning", "error")


def test_a_bfloat16_model_at_a_tiny_rate_is_reported():
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


@pytest.mark.slow
def test_a_scheme_for_sgd_is_noted_with_adam_and_not_with_sgd():
    torch.manual_seed(0)
    case = residual_mlp()  # branches scaled by 1/sqrt(N)
    assert "R411" in codes(check(case, torch.optim.Adam(case.model.parameters(), lr=1e-4)), "info")
    assert "R411" not in codes(check(case, torch.optim.SGD(case.model.parameters(), lr=1e-2)), "info")


def test_the_step_is_optional_and_can_be_required():
    case = mlp()
    adam = torch.optim.Adam(case.model.parameters())
    arguments = (case.model, case.inputs, case.targets, case.loss)
    assert leadline.check(*arguments, adam, update=False).profile.update is None
    assert leadline.check(*arguments).profile.update is None
    with pytest.raises(leadline.InputError, match="optimizer"):
        leadline.check(*arguments, update=True)


def test_a_required_step_of_an_optimizer_of_another_model_is_refused():
    case, other = mlp(), torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1)
    with pytest.raises(leadline.InputError, match="parameters of the model"):
        leadline.check(case.model, case.inputs, case.targets, case.loss, other, update=True)


def test_the_report_shows_the_predicted_and_measured_change():
    case = mlp()
    page = verbose_page(check(case, torch.optim.Adam(case.model.parameters())))
    assert "predicted" in page
    assert "by quarter of the depth" in page
