"""The depth law comes out right: exponents that theory derives, limits, errors, and one model extrapolated."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import leadline
from leadline import Case, Forecast, InputError
from leadline.nn import MLP
from leadline.nn.optim import FAMILIES
from leadline.ops.optimizers import family_of
from leadline.readings.depth_law import (
    _limit,
    crossing,
    fit_exponent,
    is_wide,
    linear_crossing,
    mean_interval,
    student_quantile,
)
from leadline.records import DepthLimit, Exponent
from leadline.report.formats import FORECAST_FORMATS
from leadline.report.look import Look

DEPTHS = (8, 16, 32)
WIDTH = 64
SAMPLES = 16

Branch = Callable[[], nn.Module]


class Residual(nn.Module):
    def __init__(self, branch: nn.Module, scale: float) -> None:
        super().__init__()
        self.branch, self.scale = branch, scale

    def forward(self, x: Tensor) -> Tensor:
        return x + self.scale * self.branch(x)


def linear(gain: float = 1.0) -> nn.Linear:
    made = nn.Linear(WIDTH, WIDTH, bias=False)
    nn.init.normal_(made.weight, std=math.sqrt(gain / WIDTH))
    return made


def two_layers() -> nn.Module:
    return nn.Sequential(linear(), nn.ReLU(), linear(2.0))


def ends_in_relu() -> nn.Module:
    return nn.Sequential(linear(2.0), nn.ReLU())


def orthogonal() -> nn.Linear:
    made = linear()
    nn.init.orthogonal_(made.weight)
    return made


def with_readout(model: nn.Module, kind: str) -> Case:
    """A fixed random read-out, so that the gradient with respect to the output is the same at every depth."""
    x, readout = torch.randn(SAMPLES, WIDTH), torch.randn(SAMPLES, WIDTH)
    made = torch.optim.SGD if kind == "sgd" else torch.optim.Adam
    optimizer = made(model.parameters(), lr=1e-4 if kind == "sgd" else 1e-5)
    return Case(model, x, loss=lambda y: (y * readout).sum() / SAMPLES, optimizer=optimizer)


def residual_family(branch: Branch, power: float, kind: str) -> Callable[[int], Case]:
    def build(depth: int) -> Case:
        return with_readout(nn.Sequential(*[Residual(branch(), depth**-power) for _ in range(depth)]), kind)

    return build


def plain_family(depth: int) -> Case:
    """A first and a last layer, which are no blocks, and `depth` between them."""
    return with_readout(nn.Sequential(*[orthogonal() for _ in range(depth + 2)]), "sgd")


def exponent_of(build: Callable[[int], Case], name: str) -> float:
    return leadline.forecast(build, DEPTHS, seeds=2).exponents[name].value


def test_a_plain_orthogonal_network_has_a_squared_gradient_in_proportion_to_depth():
    assert exponent_of(plain_family, "grad_square") == pytest.approx(1.0, abs=0.1)


@pytest.mark.parametrize(
    ("power", "kind", "expected"),
    [(0.5, "sgd", 0.0), (0.5, "adam", 0.5), (1.0, "sgd", -1.0), (1.0, "adam", 0.0)],
)
def test_a_branch_scaled_by_a_power_of_depth_changes_the_function_as_derived(power, kind, expected):
    """Steps linear in the gradient: 1 - 2a; steps free of its scale: 1 - a."""
    found = leadline.forecast(residual_family(two_layers, power, kind), DEPTHS, seeds=2)
    assert found.exponents["function_change"].value == pytest.approx(expected, abs=0.15)
    assert found.exponents["loss_change"].value == pytest.approx(expected, abs=0.15)


def test_a_branch_that_ends_in_relu_breaks_the_scaling_by_the_root_of_depth():
    zero_mean = exponent_of(residual_family(two_layers, 0.5, "sgd"), "forward_growth")
    coherent = exponent_of(residual_family(ends_in_relu, 0.5, "sgd"), "forward_growth")
    assert abs(zero_mean) < 0.25
    assert coherent > 1.0


@pytest.fixture(scope="module")
def decaying() -> Forecast:
    """PyTorch's default initialization with ReLU keeps a sixth of the squared gradient per layer."""

    def build(depth: int) -> Case:
        layers = [layer for _ in range(depth) for layer in (nn.Linear(16, 16), nn.ReLU())]
        model = nn.Sequential(*layers, nn.Linear(16, 4))
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        return Case(
            model, torch.randn(32, 16), torch.randint(4, (32,)), nn.functional.cross_entropy, optimizer
        )

    return leadline.forecast(build, (4, 8, 16), seeds=2)


def test_a_signal_that_decays_geometrically_limits_the_depth_where_its_reach_ends(decaying: Forecast):
    backward = next(limit for limit in decaying.limits if limit.cause == "backward")
    assert backward.depth == pytest.approx(1 + 7 / math.log(6), rel=0.3)
    assert decaying.max_depth <= backward.depth
    assert "gradients" in backward.message


def test_a_forecast_survives_json_and_is_printed_within_the_width(decaying: Forecast):
    assert Forecast.from_json(decaying.to_json()) == decaying
    page = FORECAST_FORMATS["text"](decaying, Look(width=80))
    assert f"TRAINS UP TO DEPTH {decaying.max_depth}" in page
    assert max(map(len, page.splitlines())) <= 80
    assert len(FORECAST_FORMATS["text"](decaying, Look(detail="verdict")).splitlines()) == 1


def test_a_flat_family_has_no_limit():
    def build(depth: int) -> Case:
        model = MLP(8, 32, depth, 4, scheme="residual-linear")
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
        return Case(
            model, torch.randn(32, 8), torch.randint(4, (32,)), nn.functional.cross_entropy, optimizer
        )

    found = leadline.forecast(build, DEPTHS, seeds=2)
    assert found.max_depth is None
    assert found.advice[0].startswith("no limit found")


def test_a_single_model_is_extrapolated_from_its_blocks():
    torch.manual_seed(0)
    case = residual_family(two_layers, 0.25, "adam")(16)
    found = leadline.forecast(case)
    assert found.from_one_model
    assert found.depths == (16,)
    assert found.exponents["loss_change"].low is None
    assert all(limit.extrapolated for limit in found.limits)
    assert "extrapolated" in FORECAST_FORMATS["text"](found, Look())


def test_progress_is_reported_before_each_network_and_at_the_end():
    calls = []
    leadline.forecast(plain_family, (2, 4), seeds=2, progress=lambda *news: calls.append(news))
    assert [done for done, _, _ in calls] == [0, 1, 2, 3, 4]
    assert calls[1] == (1, 4, "depth 2, seed 1")


def test_a_forecast_leaves_the_random_state_unchanged():
    torch.manual_seed(1)
    expected = torch.rand(1)
    torch.manual_seed(1)
    leadline.forecast(plain_family, (2, 4), seeds=1)
    assert torch.equal(torch.rand(1), expected)


BAD = {
    "depths that fall": lambda: leadline.forecast(plain_family, (8, 4)),
    "one depth": lambda: leadline.forecast(plain_family, (8,)),
    "a depth of zero": lambda: leadline.forecast(plain_family, (0, 4)),
    "no depths": lambda: leadline.forecast(plain_family, ()),
    "depths that are one number": lambda: leadline.forecast(plain_family, 8),
    "a build without argument": lambda: leadline.forecast(lambda: plain_family(3)),
    "a build of two arguments": lambda: leadline.forecast(lambda depth, width: plain_family(depth)),
    "no seeds": lambda: leadline.forecast(plain_family, (2, 4), seeds=0),
    "a build that ignores depth": lambda: leadline.forecast(lambda depth: plain_family(3), (2, 4)),
    "no optimizer": lambda: leadline.forecast(lambda depth: (nn.Linear(2, 2), torch.ones(1, 2)), (2, 4)),
    "a model of few blocks": lambda: leadline.forecast(plain_family(3)),
}


@pytest.mark.parametrize("call", BAD.values(), ids=list(BAD))
def test_bad_input_is_refused_with_a_reason(call):
    with pytest.raises(InputError, match="fix"):
        call()


def test_a_power_law_is_fitted_exactly_without_the_shallow_depths():
    curve = {depth: 0.5 * math.log(depth) for depth in (8, 16, 32)} | {2: 9.0, 4: -9.0}
    found = fit_exponent([curve, curve], (2, 4, 8, 16, 32))
    assert found.value == pytest.approx(0.5)
    assert found.depths == (8, 16, 32)


def test_a_fitted_law_crosses_a_level_at_the_exact_depth():
    falling = {depth: math.log(100 / depth) for depth in (4, 8, 16)}
    assert crossing(falling, (4, 8, 16), 0.0) == pytest.approx(100)
    assert crossing({depth: math.log(depth) for depth in (4, 8, 16)}, (4, 8, 16), 0.0) is None
    assert linear_crossing({4: 2.0, 8: 4.0}, (4, 8), 7.0) == pytest.approx(14)


def test_the_mean_interval_uses_the_quantiles_of_student():
    found = mean_interval([0.0, 2.0])
    assert found.mean == 1
    assert found.high - found.mean == pytest.approx(12.706)
    assert mean_interval([3.0]).low is None
    assert student_quantile(1) > student_quantile(5) > student_quantile(100)


@pytest.mark.parametrize(
    ("low", "value", "high", "verdict"),
    [
        (0.3, 0.5, 0.7, "grows"),
        (-0.7, -0.5, -0.3, "falls"),
        (-0.1, 0.05, 0.2, "flat"),
        (-2.0, 0.1, 2.2, "unclear"),
        (None, 0.02, None, "flat"),
        (None, 0.5, None, "grows"),
    ],
)
def test_an_exponent_claims_only_what_its_interval_allows(low, value, high, verdict):
    assert Exponent(value=value, low=low, high=high, seeds=3, depths=DEPTHS).verdict == verdict


def test_optimizer_families_agree_with_leadline_nn():
    assert {name: family_of(name) for name in FAMILIES} == FAMILIES


def limit_between(low: float, high: float) -> DepthLimit:
    crossings = [low, high]
    return _limit("step", crossings, (4, 8, 16), "training is likely to fail")


@pytest.mark.parametrize(("low", "high", "wide"), [(40.0, 41.0, False), (20.0, 60.0, True)])
def test_an_interval_wider_than_a_factor_of_four_decides_no_depth(low, high, wide):
    found = limit_between(low, high)
    assert is_wide(found) == wide == (found.high / found.low > 4)
    assert ("undecided" in found.message) == wide


def test_a_forecast_is_undecided_where_the_seeds_disagree():
    def build(depth: int) -> Case:
        """The rate depends on the seed, so that the seeds disagree about the limit."""
        layers = [layer for _ in range(depth) for layer in (linear(2.0), nn.ReLU())]
        model = nn.Sequential(*layers, nn.Linear(WIDTH, 4))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05 * 6 ** torch.initial_seed())
        labels = torch.randint(4, (SAMPLES,))
        return Case(model, torch.randn(SAMPLES, WIDTH), labels, nn.functional.cross_entropy, optimizer)

    found = leadline.forecast(build, (4, 8, 16), seeds=3)
    assert found.undecided
    assert found.max_depth is None
    assert found.max_depth_high > 4 * found.max_depth_low
    assert "more seeds or depths" in found.advice[0]
    assert FORECAST_FORMATS["text"](found, Look()).startswith("UNDECIDED")


def test_the_advice_for_a_plain_network_mentions_no_branches():
    plain = leadline.forecast(plain_family, DEPTHS, seeds=2).advice
    branched = leadline.forecast(residual_family(two_layers, 0.25, "sgd"), DEPTHS, seeds=2).advice
    assert not any("scale the branches" in each for each in plain)
    assert any("no branch to scale" in each for each in plain)
    assert any("scale the branches" in each for each in branched)
