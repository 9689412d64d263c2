"""Laws of width, batch and duration come out as derived, with rules that lead from one to the other."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import leadline
from leadline import Case, Forecast, InputError
from leadline.nn import LanguageModel, param_groups
from leadline.nn.optim import Base
from leadline.readings.gradient_noise import NoiseSample, advise_noise, read_noise, sample_noise
from leadline.readings.scaling import (
    TensorShape,
    _duration_laws,
    advise_along,
    batch_rules,
    kinds_of,
    read_decay_memory,
    spectral_rate_power,
    width_rules,
)
from leadline.records import AxisLaw, ScalingRule
from leadline.report.formats import FORECAST_FORMATS
from leadline.report.look import Look
from leadline.tracer.names import index_model
from leadline.tracer.optimizer import read_optimizer

WIDTHS = (64, 128, 256)
FEATURES, CLASSES = 16, 16


def mlp(width: int, depth: int = 2, *, head_std: float | None = None) -> nn.Sequential:
    """A plain network with unit signal at every width; the head's standard deviation may differ."""
    sizes = [FEATURES, *[width] * (depth + 1), CLASSES]
    layers: list[nn.Module] = []
    for fan_in, fan_out in itertools.pairwise(sizes):
        layer = nn.Linear(fan_in, fan_out)
        nn.init.normal_(layer.weight, std=math.sqrt(2 / fan_in))
        nn.init.zeros_(layer.bias)
        layers += [layer, nn.ReLU()]
    if head_std is not None:
        nn.init.normal_(layers[-2].weight, std=head_std)
    return nn.Sequential(*layers[:-1])


def case_of(model: nn.Module, optimizer: object, batch: int = 64) -> Case:
    """The batch depends on the seed alone, not on how many random numbers the model took."""
    generator = torch.Generator().manual_seed(torch.initial_seed())
    inputs = torch.randn(batch, FEATURES, generator=generator)
    labels = torch.randint(CLASSES, (batch,), generator=generator)
    return Case(model, inputs, labels, nn.functional.cross_entropy, optimizer)


def standard_adam(width: int, depth: int = 2, batch: int = 64) -> Case:
    model = mlp(width, depth)
    return case_of(model, torch.optim.AdamW(model.parameters(), lr=1e-5, weight_decay=0.1), batch)


def mup_adam(width: int) -> Case:
    """muP: the rates of hidden and output matrices and the head's initialization fall like 1/width."""
    model = mlp(width, head_std=1 / width)
    large = [p for name, p in model.named_parameters() if p.ndim > 1 and not name.startswith("0.")]
    small = [p for p in model.parameters() if all(p is not each for each in large)]
    factor = WIDTHS[0] / width
    groups = [{"params": large, "lr": 1e-5 * factor, "weight_decay": 0.1 / factor}, {"params": small}]
    return case_of(model, torch.optim.AdamW(groups, lr=1e-5, weight_decay=0.1))


def standard_sgd(width: int) -> Case:
    model = mlp(width)
    return case_of(model, torch.optim.SGD(model.parameters(), lr=1e-5))


def width_law(build: Callable[..., Case]) -> AxisLaw:
    return leadline.forecast(build, widths=WIDTHS, seeds=3).laws[0]


def rule(law: AxisLaw, setting: str) -> ScalingRule:
    return next(each for each in law.rules if each.setting == setting)


@pytest.fixture(scope="module")
def standard() -> Forecast:
    return leadline.forecast(standard_adam, widths=WIDTHS, steps=1000, seeds=3)


def test_adam_with_one_rate_changes_the_function_at_least_in_proportion_to_width(standard: Forecast):
    """The head contributes width^1, hidden layers up to width^1.5: features move like width, along the head's rows."""
    assert 0.85 < standard.laws[0].exponents["function_change"].value < 1.65
    assert standard.laws[0].exponents["safe_rate"].value < -0.5


def test_rules_for_adam_lead_from_the_standard_parametrization_to_mup(standard: Forecast):
    law = standard.laws[0]
    for kind in ("hidden matrices", "output matrices"):
        assert rule(law, f"learning rate, {kind}").power == pytest.approx(-1.0, abs=0.1)
        assert rule(law, f"weight decay, {kind}").power == pytest.approx(1.0, abs=0.1)
    assert rule(law, "learning rate, input matrices").power == 0
    assert rule(law, "initial standard deviation, hidden matrices").power == 0
    assert rule(law, "initial standard deviation, output matrices").power == pytest.approx(-0.5, abs=0.2)


def test_under_mup_the_step_is_flat_in_width_and_only_epsilon_is_left_to_change():
    law = width_law(mup_adam)
    assert law.exponents["function_change"].value == pytest.approx(0.0, abs=0.2)
    assert {each.setting.split(",")[0] for each in law.rules if each.power} <= {"epsilon"}
    assert any("follow muP" in sentence for sentence in law.advice)


def test_sgd_on_a_plain_network_has_the_powers_of_the_tangent_kernel():
    """The kernel grows like width; entries of the gradient fall like its root, except those of the head."""
    law = width_law(standard_sgd)
    assert law.exponents["function_change"].value == pytest.approx(1.0, abs=0.25)
    assert rule(law, "learning rate, hidden matrices").power == pytest.approx(-0.5, abs=0.15)
    assert rule(law, "learning rate, input matrices").power == pytest.approx(0.5, abs=0.15)
    assert rule(law, "learning rate, output matrices").power == pytest.approx(-1.0, abs=0.15)
    assert not any(each.setting.startswith("epsilon") for each in law.rules)


def language_model(width: int, *, groups: bool) -> Case:
    model = LanguageModel(32, width, 2, 2, scheme="residual-linear", max_len=8)
    held = param_groups(model, None, "adamw", lr=1e-5, base=Base(width=32)) if groups else model.parameters()
    tokens = torch.randint(32, (4, 9))
    return Case(
        model,
        tokens[:, :-1],
        tokens[:, 1:],
        lambda y, t: nn.functional.cross_entropy(y.flatten(0, 1), t.flatten()),
        torch.optim.AdamW(held, lr=1e-5),
    )


def test_the_groups_of_leadline_nn_flatten_the_blocks_and_the_head():
    plain, grouped = (
        leadline.forecast(lambda width, g=g: language_model(width, groups=g), widths=(32, 64, 128), seeds=2)
        for g in (False, True)
    )
    assert plain.laws[0].exponents["blocks_change"].value == pytest.approx(1.0, abs=0.25)
    assert grouped.laws[0].exponents["blocks_change"].value == pytest.approx(0.0, abs=0.25)
    assert rule(grouped.laws[0], "learning rate, hidden matrices").power == 0
    assert rule(grouped.laws[0], "learning rate, output matrices").power == pytest.approx(0.0, abs=0.1)


@pytest.mark.parametrize(("adjust", "power"), [("original", 0.0), ("match_rms_adamw", -0.5)])
def test_muon_has_a_width_law_of_its_own(adjust, power):
    if not hasattr(torch.optim, "Muon"):
        pytest.skip("torch has Muon since 2.9")

    def build(width: int) -> Case:
        model = mlp(width)
        hidden = [model[2].weight, model[4].weight]
        others = [p for p in model.parameters() if all(p is not each for each in hidden)]
        muon = torch.optim.Muon(hidden, lr=1e-4, adjust_lr_fn=adjust)
        return case_of(model, [muon, torch.optim.AdamW(others, lr=1e-5)])

    found = leadline.forecast(build, widths=(16, 32), seeds=1).laws[0]
    assert rule(found, "learning rate, hidden matrices").power == pytest.approx(power, abs=1e-6)


# The batch.


def linear_loss(mean: float, *, batch: int, reduce: str) -> Case:
    """The gradient of a sample is the sample itself: its covariance is the identity and its mean is known."""
    model = nn.Linear(8, 1, bias=False)
    inputs = torch.randn(batch, 8) + mean / math.sqrt(8)
    return Case(
        model,
        inputs,
        loss=lambda y: getattr(y, reduce)(),
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
    )


@pytest.mark.parametrize("reduce", ["mean", "sum"])
def test_the_critical_batch_is_the_trace_of_the_covariance_over_the_squared_mean(reduce):
    torch.manual_seed(0)
    samples = [sample_noise(linear_loss(1.0, batch=256, reduce=reduce)) for _ in range(8)]
    assert read_noise(samples).critical_batch == pytest.approx(8.0, rel=0.3)


def test_noise_that_hides_the_mean_gradient_is_only_a_bound():
    noise = read_noise([NoiseSample(mean_square=-1.0, variance=5.0, samples=64)] * 2)
    assert noise.critical_batch is None
    assert noise.resolved_up_to == 128
    assert "larger than 128" in advise_noise(noise, (8, 16), "SGD", 0.1)[0]


def test_a_loss_that_mixes_samples_has_no_noise_by_samples():
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    mixing = Case(model, torch.randn(16, 4), loss=lambda y: y.sum().square(), optimizer=optimizer)
    assert sample_noise(mixing) is None
    assert "not measured" in advise_noise(None, (8, 16), "SGD", 0.1)[0]


def test_the_squared_gradient_follows_the_noise_over_the_batch():
    def build(batch: int) -> Case:
        return linear_loss(1.0, batch=batch, reduce="mean")

    law = leadline.forecast(build, batches=(8, 16, 32, 64), seeds=6).laws[0]
    critical = law.noise.critical_batch
    derived = math.log((1 + critical / 64) / (1 + critical / 8)) / math.log(8)
    assert law.exponents["grad_square"].value == pytest.approx(derived, abs=0.25)
    assert any(f"batch^{derived:+.2f}" in sentence for sentence in law.advice)


def test_the_rate_follows_the_root_of_the_batch_for_adam_and_the_batch_for_sgd():
    adam = {each.setting: each.power for each in batch_rules("AdamW", decays=True, has_epsilon=True)}
    assert adam == {
        "learning rate": 0.5,
        "epsilon": -0.5,
        "1 - beta1 and 1 - beta2": 1.0,
        "weight decay": 0.5,
    }
    sgd = {each.setting: each.power for each in batch_rules("SGD", decays=False, has_epsilon=False)}
    assert sgd == {"learning rate": 1.0}
    assert batch_rules("Unheard", decays=True, has_epsilon=True) == ()


def test_beyond_the_critical_batch_the_rate_hardly_grows():
    noise = read_noise([NoiseSample(mean_square=1.0, variance=1.0, samples=64)] * 2)
    assert "gives the rate 0.11 instead of 0.1" in advise_noise(noise, (8, 64), "SGD", 0.1)[-1]


# Duration.


@pytest.mark.parametrize(
    ("steps", "word"), [(100, "hardly acts"), (20_000, "of the order of the run"), (10**6, "is left")]
)
def test_the_memory_of_decay_is_compared_with_the_run(steps, word):
    model = nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)
    memory = read_decay_memory(case_of(nn.Sequential(model), optimizer), steps)
    assert memory.shortest == memory.longest == pytest.approx(1e4)
    assert word in memory.advice[0]
    assert memory.advice[1].startswith("law, not measured")


def test_without_decay_there_is_no_memory_to_compare():
    model = nn.Linear(2, 2)
    assert read_decay_memory(case_of(model, torch.optim.SGD(model.parameters(), lr=0.1)), 100) is None


# The whole forecast.


def test_each_axis_varies_while_the_others_keep_their_first_value():
    calls = []

    def build(depth: int, width: int, batch: int) -> Case:
        calls.append((depth, width, batch))
        return standard_adam(width, depth, batch)

    found = leadline.forecast(build, (2, 4), widths=(16, 32), batches=(8, 16), steps=100, seeds=1)
    assert {(4, 16, 8), (2, 32, 8), (2, 16, 16)} <= set(calls)
    assert not any(sum((d != 2, w != 16, b != 8)) > 1 for d, w, b in calls)
    assert found.depths == (2, 4)
    assert [law.axis for law in found.laws] == ["width", "batch"]
    assert found.laws[0].base == {"depth": 2, "batch": 8}
    assert found.decay_memory.steps == 100


def test_a_forecast_of_width_survives_json_and_is_shown_in_every_format(standard: Forecast):
    assert Forecast.from_json(standard.to_json()) == standard
    page = FORECAST_FORMATS["text"](standard, Look(width=80))
    assert page.startswith("LAW OF WIDTH")
    assert max(map(len, page.splitlines())) <= 80
    assert "weight decay remembers" in page
    assert "Length of the run" in FORECAST_FORMATS["html"](standard, Look())


BAD = {
    "a build without width": lambda: leadline.forecast(lambda depth: standard_adam(8, depth), widths=(8, 16)),
    "a build without batch": lambda: leadline.forecast(lambda width: standard_adam(width), batches=(8, 16)),
    "a build that ignores width": lambda: leadline.forecast(lambda width: standard_adam(8), widths=(8, 16)),
    "a build that ignores batch": lambda: leadline.forecast(lambda batch: standard_adam(8), batches=(8, 16)),
    "widths that fall": lambda: leadline.forecast(standard_adam, widths=(16, 8)),
    "a batch of zero": lambda: leadline.forecast(standard_adam, batches=(0, 8)),
    "no values": lambda: leadline.forecast(lambda width: standard_adam(width)),
    "a width that is missing": lambda: leadline.forecast(lambda width, batch: 0, batches=(8, 16)),
    "no steps": lambda: leadline.forecast(standard_adam, widths=(8, 16), steps=0),
    "widths of one model": lambda: leadline.forecast(standard_adam(8), widths=(8, 16)),
}


@pytest.mark.parametrize("call", BAD.values(), ids=list(BAD))
def test_values_that_cannot_be_measured_are_refused_with_a_reason(call):
    with pytest.raises(InputError, match=r"fix") as caught:
        call()
    assert any(word in str(caught.value) for word in ("width", "batch", "steps"))


def test_a_case_without_an_optimizer_has_neither_a_spectral_rate_nor_a_memory_of_decay():
    case = Case(nn.Linear(4, 2), torch.randn(8, 4), torch.randn(8, 2), F.mse_loss)
    assert spectral_rate_power(case) is None
    assert read_decay_memory(case, steps=100) is None


def test_where_nothing_grew_with_width_there_are_no_rules():
    assert width_rules({}) == ()


def test_noise_needs_several_samples():
    case = Case(nn.Linear(4, 2), torch.randn(1, 4), torch.randn(1, 2), F.mse_loss)
    assert sample_noise(case) is None
    assert read_noise([]) is None


def test_a_parameter_whose_number_of_axes_differs_between_widths_has_no_kind():
    def shape(*sizes: int) -> TensorShape:
        return TensorShape(shape=sizes, input_axis=1)

    narrow = {"a": shape(4, 4), "b": shape(4), "same": shape(2, 2)}
    wide = {"a": shape(8, 8), "b": shape(8, 1), "same": shape(2, 2), "new": shape(8, 8)}
    assert kinds_of(narrow, wide) == {"a": "hidden"}


def test_no_rules_for_width_are_no_claim_that_all_rules_are_met():
    assert advise_along("width", (64, 128), {}, (), 1e-3) == ()
    kept = ScalingRule(setting="rate of hidden matrices", power=0.0, reason="", source="")
    assert "follow muP" in advise_along("width", (64, 128), {}, (kept,), 1e-3)[0]


def test_noise_without_a_rate_or_with_an_unknown_optimizer_gives_no_rate_for_a_larger_batch():
    noise = read_noise([NoiseSample(samples=64, variance=10.0, mean_square=1.0)])
    with_rate = advise_noise(noise, (16, 64), "AdamW", 1e-3)
    assert "square-root rule" in with_rate[-1]
    assert advise_noise(noise, (16, 64), "AdamW", None) == with_rate[:-1]
    assert advise_noise(noise, (16, 64), "Unheard", 1e-3) == with_rate[:-1]


@pytest.mark.parametrize(("decoupled", "advised"), [(True, True), (False, False)])
def test_laws_of_longer_runs_are_those_of_decoupled_decay(decoupled: bool, advised: bool):
    model = mlp(64)
    make = torch.optim.AdamW if decoupled else torch.optim.Adam
    optimizer = read_optimizer(make(model.parameters(), lr=1e-3, weight_decay=0.1), index_model(model))
    assert bool(_duration_laws(optimizer)) == advised
