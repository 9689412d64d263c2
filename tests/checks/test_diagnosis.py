"""From a model to a verdict."""

from __future__ import annotations

import copy
import itertools
import json
import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from msgspec.structs import replace
from torch import Tensor, nn

import leadline
from leadline.case import Case
from leadline.checks._check import Symptom
from leadline.checks._check import check as make_check
from leadline.checks._diagnosis import check_case
from leadline.checks._examples import geometric
from leadline.readings.wiring.dependence import MAX_PASSES, NO_TIME_LEFT
from leadline.records import Finding, Profile
from leadline.records.report import Report

WIDTH = 32
# Derived: what begins before the time is over is finished: a trial step with a look at held-out samples, and one probe.
MAX_PASSES_OF_A_PART = MAX_PASSES


def stack(depth: int, activation: type[nn.Module] = nn.ReLU, gain: float | None = None) -> nn.Module:
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for _ in range(depth):
        linear = nn.Linear(WIDTH, WIDTH)
        if gain is not None:
            nn.init.normal_(linear.weight, std=math.sqrt(gain / WIDTH))
            nn.init.zeros_(linear.bias)
        layers += [linear, activation()]
    return nn.Sequential(*layers, nn.Linear(WIDTH, 4))


def check(model: nn.Module) -> Report:
    torch.manual_seed(1)
    return leadline.check(model, torch.randn(16, WIDTH), torch.randint(0, 4, (16,)), F.cross_entropy)


@pytest.mark.parametrize(
    ("model", "verdict", "root", "consequences"),
    [
        (stack(5, gain=2.0), "trains", None, set()),
        (stack(40), "fails", "I302", {"B201"}),
        (stack(20, nn.Sigmoid), "fails", "B201", set()),
        (stack(30, gain=8.0), "fails", "I301", {"B202", "F101"}),
        (stack(30, gain=0.5), "fails", "I301", {"B201", "F102"}),
    ],
    ids=[
        "He initialization",
        "default initialization at depth",
        "sigmoid",
        "gain too large",
        "gain too small",
    ],
)
def test_deep_plain_networks_get_the_verdict_and_the_cause_that_theory_gives_them(
    model, verdict, root, consequences
):
    report = check(model)
    assert report.verdict == verdict
    roots = {finding.code for finding in report.findings if not finding.explained_by}
    assert roots == ({root} if root else set())
    assert consequences <= {finding.code for finding in report.findings if finding.explained_by == root}


def found(report: Report, code: str) -> Finding:
    (finding,) = [each for each in report.findings if each.code == code]
    return finding


def test_default_initialization_loses_five_sixths_of_the_gradient_per_layer_and_the_weights_are_blamed():
    finding = found(check(stack(40)), "B201")
    assert finding.evidence["gain_per_block"] == pytest.approx(1 / 6, rel=0.15)  # chi = sigma_w^2 / 2 = 1/6
    assert "per layer but ReLU needs" in finding.message
    assert "kaiming_normal_" in finding.action


def test_a_sigmoid_stack_blames_the_slope_of_the_sigmoid():
    message = found(check(stack(20, nn.Sigmoid, gain=1.0)), "B201").message
    assert "% of the change comes from the slope of sigmoid" in message
    assert "at most 0.0625" in message


def test_the_reason_is_in_the_report_and_confidence_needs_an_optimizer():
    report = check(stack(40))
    assert report.reason
    assert report.confidence is None
    model = stack(3, gain=2.0)
    optimizer = torch.optim.Adam(model.parameters())
    known = leadline.check(
        model, torch.randn(16, WIDTH), torch.randint(0, 4, (16,)), F.cross_entropy, optimizer
    )
    assert 0.5 < known.confidence < 1


def test_no_report_states_that_it_is_certain():
    report = replace(check(stack(3, gain=2.0)), confidence=0.9999)
    assert "(confidence 99 %)" in " ".join(str(report).split())


@pytest.mark.slow
def test_a_resnet_50_at_initialization_has_no_warning():
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    model = transformers.ResNetForImageClassification(transformers.ResNetConfig(num_labels=10))
    report = leadline.check(
        model, {"pixel_values": torch.randn(4, 3, 64, 64), "labels": torch.randint(0, 10, (4,))}
    )
    assert [finding for finding in report.findings if finding.severity != "info"] == []
    body = report.profile.blocks[:-1]
    first, last = (block.backward_ms * block.elements for block in (body[0], body[-1]))
    gain = (first / last) ** (1 / (len(body) - 1))
    assert 1.5 < gain < 2.2  # the page of B202 states this amplification


class Breaks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.log(self.inner(x)))


def test_the_first_op_that_makes_a_number_non_finite_is_named():
    report = check(Breaks())
    assert report.verdict == "fails"
    assert report.findings[0].code == "N701"
    assert "log" in report.findings[0].message


class SqrtAtZero(nn.Module):
    """Finite forward; the gradient of sqrt at zero is infinite."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.first(x)).sqrt())


def test_an_infinite_gradient_is_blamed_on_the_op_that_made_it():
    (finding,) = [f for f in check(SqrtAtZero()).findings if f.code == "N701"]
    assert "gradient" in finding.message
    assert "sqrt" in finding.message


def test_a_parameter_that_is_nan_is_named_as_the_source():
    model = stack(3)
    with torch.no_grad():
        model[2].weight[0, 0] = math.nan
    finding = check(model).findings[0]
    assert finding.code == "N701"
    assert "2.weight contains NaN" in finding.message


class Masked(nn.Module):
    """Attention with a causal mask of -inf, as is usual."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.head = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, 4)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        scores = (q @ k.mT).masked_fill(torch.ones(len(x), len(x)).triu(1).bool(), -math.inf)
        return self.head(scores.softmax(-1) @ v)


def test_a_mask_of_minus_infinity_is_not_an_anomaly():
    assert [finding.code for finding in check(Masked()).findings if finding.severity != "info"] == []


def test_a_model_without_values_is_undecided():
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))
    report = leadline.check(model, torch.randn(2, 4, device="meta"), loss=lambda y: y.square().mean())
    assert report.verdict == "undecided"


def test_a_check_of_the_user_runs_too():
    @make_check(
        code="F190", name="own-rule", since="0.1.0", sick=geometric(blocks=4), healthy=geometric(blocks=4)
    )
    def own(profile: Profile):
        yield Symptom(
            severity="warning", where="everywhere", message="I say so", action="Do so.", evidence={}
        )

    model = stack(3, gain=2.0)
    report = leadline.check(model, torch.randn(8, WIDTH), loss=lambda y: y.square().mean(), rules=[own])
    assert (report.verdict, report.findings[0].name) == ("poor", "own-rule")


def test_a_report_survives_json_with_every_key_of_the_contract():
    report = check(stack(12))
    data = json.loads(report.to_json())
    assert {"schema", "verdict", "findings", "profile", "coverage"} <= data.keys()
    assert {"name", "forward_ms", "backward_ms"} <= data["profile"]["blocks"][0].keys()
    assert Report.from_json(report.to_json()) == report


def test_the_largest_jumps_are_named_by_block_and_have_the_size_of_the_factor():
    model = stack(6, gain=2.0)
    before = check(model).profile.blocks
    own = before[3].forward_ms / before[2].forward_ms
    with torch.no_grad():
        model[6].weight.mul_(30)
    factors = {(jump.direction, jump.block): jump.factor for jump in check(model).profile.jumps}
    assert factors["forward", "6"] == pytest.approx(900 * own, rel=1e-3)  # ReLU preserves a factor
    assert factors["backward", "6"] > 100


def test_an_optimizer_of_another_model_costs_the_step_and_not_the_report():
    model, other = stack(3, gain=2.0), stack(3, gain=2.0)
    arguments = model, torch.randn(8, WIDTH), torch.randint(0, 4, (8,)), F.cross_entropy
    report = leadline.check(*arguments, torch.optim.Adam(other.parameters()))
    assert report.profile.update is None
    assert any(gap.what == "one step of the optimizer" for gap in report.coverage.gaps)


def test_a_step_uphill_and_a_loss_without_gradient_are_found():
    model = stack(3, gain=2.0)
    x, y = torch.randn(16, WIDTH), torch.randint(0, 4, (16,))
    ascent = torch.optim.SGD(model.parameters(), lr=0.1, maximize=True)
    assert found(leadline.check(model, x, y, F.cross_entropy, ascent), "U507").severity == "error"
    usual = torch.optim.SGD(model.parameters(), lr=0.1)
    flat = leadline.check(model, x, y, lambda out, labels: (out * 0).sum(), usual)
    assert found(flat, "U508").severity == "error"


def test_a_stack_of_saturated_tanh_is_blamed_on_its_weights():
    assert found(check(stack(30, nn.Tanh, gain=64.0)), "I301").evidence["gain"] > 30


def counted_case() -> tuple[Case, Callable[[], int]]:
    """A case, and a function that returns the number of its passes so far; a list would be restored by the check."""
    counter = itertools.count()

    class Counted(nn.Sequential):
        def forward(self, x):
            next(counter)
            return super().forward(x)

    torch.manual_seed(0)
    model = Counted(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    targets = torch.randint(2, (16,))
    case = Case(model, torch.randn(16, 8), targets, nn.CrossEntropyLoss(), optimizer)
    return case, lambda: next(copy.copy(counter))


def test_a_check_whose_time_is_over_makes_no_further_passes_and_says_what_it_left_out():
    case, count_passes = counted_case()
    check_case(case)
    late_case, count_late_passes = counted_case()
    report = check_case(late_case, is_late=lambda: True)
    assert 0 < count_late_passes() < count_passes() / 4
    gaps = {each.what for each in report.coverage.gaps if each.why == NO_TIME_LEFT}
    assert gaps == {"what the first steps achieve", "what the outputs depend on"}


@pytest.mark.parametrize("limit", [20, 40, 80])
def test_trial_steps_stop_when_the_time_is_over(limit):
    """The clock is the number of passes."""
    case, count_passes = counted_case()
    report = check_case(case, is_late=lambda: count_passes() > limit)
    assert count_passes() <= limit + MAX_PASSES_OF_A_PART
    assert any(each.why == NO_TIME_LEFT for each in report.coverage.gaps)
