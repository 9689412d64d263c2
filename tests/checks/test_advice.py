"""The numbers in a finding are right: what it counts, and a change by the factor it names removes it."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from statistics import NormalDist

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from leadline.checks import model_checks, run_checks
from leadline.checks._causes import LayerGain, is_default_init
from leadline.checks._examples import (
    each_block,
    geometric,
    parameter_step,
    residual,
    scalar_history,
    stack_with,
    stack_with_decay,
    stack_with_step_size,
    stack_with_update,
    weight,
)
from leadline.checks._laws import backward_laws, scaled_init_ratio
from leadline.checks._steps import lower_rate_action, share_of_repeated_blocks
from leadline.checks._wiring_examples import asked
from leadline.checks.model.gradient_underflow import needed_bits
from leadline.records import (
    Attribution,
    EpsSite,
    Factor,
    Finding,
    Head,
    LowRankStep,
    ModelFacts,
    Precision,
    Profile,
)

CHECKS = {check.code: check for check in (*model_checks(), *run_checks())}
NUMBER = r"([\d.]+(?:e[+-]?\d+)?)"


def finding_of(code: str, profile: Profile) -> Finding:
    (finding,) = CHECKS[code](profile)
    return finding


def number_after(words: str, text: str) -> float:
    match = re.search(re.escape(words) + NUMBER, text)
    assert match, text
    return float(match.group(1).rstrip("."))


@pytest.mark.parametrize("skip_ms", [1e-8, 1e-5, 1e7])
def test_the_embedding_has_the_size_of_the_first_branch_after_the_change_that_is_named(skip_ms: float):
    stream = each_block(geometric(blocks=8), residual=residual(skip_ms=skip_ms, branch_ms=1.0))
    factor = number_after("embedding by ", finding_of("F108", stream).action)
    assert factor**2 * skip_ms == pytest.approx(1.0, rel=0.1)


def test_a_deliberate_scale_is_no_part_of_the_size_of_a_stream():
    sizes = residual(skip_ms=1e-2, skip_scale=1e2, branch_ms=1e-8, branch_scale=1e-4)
    stream = each_block(geometric(blocks=8), residual=sizes)
    assert finding_of("F108", stream).evidence["ratio"] == pytest.approx(1e-6)


@pytest.mark.parametrize("branch_ms", [100.0, 1e4])
def test_a_branch_has_the_size_of_its_skip_after_the_change_that_is_named(branch_ms: float):
    stream = each_block(geometric(blocks=12), residual=residual(branch_ms=branch_ms))
    factor = number_after("branch by ", finding_of("R405", stream).action)
    assert factor**2 * branch_ms == pytest.approx(1.0, rel=0.1)


@pytest.mark.parametrize("logit_ms", [4.0, 900.0])
def test_logits_have_size_one_after_the_change_of_the_head_that_is_named(logit_ms: float):
    head = Head(loss="cross_entropy", value=31.0, classes=10, logit_ms=logit_ms, logit_max=90.0, behind="")
    factor = number_after("last layer by ", finding_of("I308", stack_with(ModelFacts(head=head))).action)
    assert factor**2 * logit_ms == pytest.approx(1.0, rel=0.1)


@pytest.mark.parametrize(
    ("code", "profile", "quantity", "limit"),
    [
        ("U521", stack_with_step_size(relative=4.0, predicted_decrease=20.0), 4.0, 1.0),
        ("U521", stack_with_step_size(optimizer="SGD", relative=4.0, predicted_decrease=20.0), 4.0, 0.5),
        ("U523", stack_with_step_size(predicted_decrease=300.0), 300.0, 10.0),
        ("U523", stack_with_step_size(optimizer="SGD", predicted_decrease=300.0), 300.0, 50.0),
    ],
    ids=["U521-Adam", "U521-SGD", "U523-Adam", "U523-SGD"],
)
def test_a_step_at_the_lower_rate_that_is_named_is_just_short_enough(
    code: str, profile: Profile, quantity: float, limit: float
):
    rate = number_after("from 0.001 to ", finding_of(code, profile).action)
    assert quantity * rate / 1e-3 == pytest.approx(limit, rel=0.1)


@pytest.mark.parametrize(
    ("optimizer", "sizes", "quantity", "limit"),
    [
        ("AdamW", {"relative": 1e-5}, 1e-5, 3e-4),
        ("SGD", {"predicted_decrease": 1e-4}, 1e-4, 2e-3),
    ],
)
def test_a_step_at_the_higher_rate_that_is_named_is_just_long_enough(
    optimizer: str, sizes: dict[str, float], quantity: float, limit: float
):
    crawling = stack_with_step_size(optimizer=optimizer, **sizes)
    rate = number_after("at least ", finding_of("U522", crawling).action)
    assert quantity * rate / 1e-3 == pytest.approx(limit, rel=0.1)


def test_the_weight_decay_that_is_named_removes_no_more_than_a_fiftieth_per_step():
    action = finding_of("U524", stack_with_step_size(decay=0.1)).action
    assert number_after("at most ", action) * 1e-3 == pytest.approx(0.02)


@pytest.mark.parametrize(("change", "code", "limit"), [(2.0, "U532", 0.3), (1e-7, "U533", 1e-5)])
def test_an_adapter_moves_by_a_usual_amount_at_the_rate_that_is_named(change: float, code: str, limit: float):
    step = LowRankStep(base="layers.0.weight", rank=8, scale=2.0, change=change, base_size=1.0)
    action = finding_of(code, stack_with_update(low_rank=(step,))).action
    rate = number_after("the learning rate to ", action.replace("at least ", ""))
    assert change * rate / 1e-3 == pytest.approx(limit, rel=0.1)


@pytest.mark.parametrize("variance", [1e-6, 3e-5])
def test_the_smaller_eps_that_is_named_does_not_limit_the_norm(variance: float):
    limited = stack_with_decay(eps=[EpsSite(where="norm", eps=1e-5, against=variance)])
    eps = number_after("to ", finding_of("W603", limited).action)
    assert 0.001 < eps / variance < 0.1
    repaired = stack_with_decay(eps=[EpsSite(where="norm", eps=eps, against=variance)])
    assert list(CHECKS["W603"](repaired)) == []


def half_precision(**fields: float) -> Profile:
    sizes = {"largest": 4.0, "lost": 0.4, **fields}
    precision = Precision(
        dtype="float16", parameters="float32", tiny=6e-8, huge=65504.0, largest_at="head", lost_at="layers.0",
        **sizes,
    )  # fmt: skip
    return stack_with(ModelFacts(precision=precision))


@given(st.floats(0.002, 0.99))
def test_a_gradient_loses_a_thousandth_after_the_loss_scale_that_is_named(lost: float):
    """A Gaussian loses the entries within a threshold of zero; scaling it up divides the threshold."""
    threshold = NormalDist().inv_cdf((1 + lost) / 2) / 2 ** needed_bits(lost)
    assert 2 * NormalDist().cdf(threshold) - 1 == pytest.approx(0.4e-3, rel=0.1)


def test_a_loss_scale_is_named_only_if_the_largest_number_has_room_for_it():
    assert "2^11 to 2^13" in finding_of("N702", half_precision(largest=7.0)).action
    assert finding_of("N702", half_precision(largest=60.0)).action.startswith("Use bfloat16")


def test_no_room_for_a_loss_scale_is_promised_where_every_number_is_zero():
    finding = finding_of("N702", half_precision(largest=0.0))
    assert finding.evidence["room_bits"] == 0
    assert finding.action.startswith("Use bfloat16")


@pytest.mark.parametrize(
    ("largest", "found"), [(65504 / 8, 0), (65504 / 7.9, 1), (65504 * 0.998, 1), (65504 * 0.9995, 0)]
)
def test_a_number_is_near_overflow_with_less_than_a_factor_of_eight_unless_it_is_the_limit_itself(
    largest: float, found: int
):
    assert len(list(CHECKS["N703"](half_precision(largest=largest)))) == found


@pytest.mark.parametrize(
    ("rate", "words"), [(1e-6, "Find where the gradient"), (0.9e-6, "Raise the learning")]
)
def test_only_a_rate_below_a_millionth_is_the_reason_of_a_step_that_float32_loses(rate: float, words: str):
    step = parameter_step(dtype="float32", swallowed=0.9)
    assert finding_of("U506", stack_with_update(parameters=(step,), lr=rate)).action.startswith(words)


def test_a_loss_scale_that_halves_every_twenty_steps_falls_by_that_rate():
    halving = scalar_history(300, loss_scale=lambda step: 65536.0 * 0.5 ** (step // 20))
    (found,) = CHECKS["T809"](halving)
    assert found.trend == pytest.approx(-math.log(2) / 20, rel=0.1)


def test_matrices_count_as_trainable_from_the_first_block_on():
    constant = weight(1, constant=True)
    weights = (weight(-1), weight(0), constant, weight(2), weight(2, trainable=False))
    finding = finding_of("I304", stack_with(ModelFacts(weights=weights)))
    assert "1 of 3 trainable matrices" in finding.message


def test_a_weight_outside_of_the_blocks_counts_if_it_has_a_gradient():
    outside = (weight(-1, name="with", grad_ms=1.0), weight(-1, name="without", grad_ms=None))
    weights = (weight(0, grad_ms=None), weight(1), *outside)
    finding = finding_of("B203", stack_with(ModelFacts(weights=weights)))
    assert "1 of 3 trainable weight layers" in finding.message


@pytest.mark.parametrize(
    ("names", "said"),
    [({"loss": "nll_loss"}, "nll_loss"), ({"loss": "mean", "scores_loss": "nll_loss"}, "nll_loss")],
)
def test_the_loss_that_gets_wrong_scores_is_named(names: dict[str, str], said: str):
    scores = asked(classes=10, scores="logits", expects="log-probabilities", **names)
    assert finding_of("D910", scores).message.startswith(f"{said} expects")


@pytest.mark.parametrize("others", [0.5, 1.0, 4.0])
def test_last_weights_are_compared_with_the_other_weights_of_any_size(others: float):
    weights = [weight(residual=True, last=True, variance=others / 8), weight(residual=True, variance=others)]
    assert scaled_init_ratio(stack_with(ModelFacts(weights=tuple(weights))), 8) == pytest.approx(1 / 8)


@pytest.mark.parametrize(
    ("shares", "total"),
    [([1 / 16] * 8, 0.5), ([0.06] * 8, None), ([0.1] * 7, None), ([0.51, *[0.05] * 9], None)],
    ids=["half of the step", "less than half", "few blocks", "one block has most"],
)
def test_blocks_make_a_step_too_long_together_if_there_are_many_and_they_have_at_least_half_of_it(
    shares: list[float], total: float | None
):
    assert share_of_repeated_blocks(stack_with_update(shares=shares)) == total


@given(slope=st.floats(0.26, 4.0))
def test_weights_with_the_needed_gain_preserve_the_moment(slope: float):
    layer = LayerGain(activation="relu", slope=slope, weight=1.0)
    assert layer.needed * slope == pytest.approx(1.0)
    assert layer.repairable


def test_a_saturated_activation_needs_the_weights_of_one_that_is_not():
    assert LayerGain(activation="tanh", slope=0.24, weight=1.0).needed == pytest.approx(1.0)


def decaying(*parts: tuple[str, str, float]) -> Profile:
    """A stack whose ops of these kinds and names change the gradient by these factors per block."""
    factors = tuple(
        Factor(block=block, kind=kind, op=op, backward=math.log(gain))
        for block in range(40)
        for kind, op, gain in parts
    )
    gain = math.prod(gain for _, _, gain in parts)
    return replace(geometric(blocks=40, grad_gain=gain), attribution=Attribution(factors=factors))


def test_causes_of_a_decay_are_listed_with_the_gain_of_each_layer():
    message = finding_of(
        "B201", decaying(("weight", "linear", 0.8), ("activation", "relu", 0.7), ("norm", "layer_norm", 0.8))
    ).message
    assert "44 % of the change comes from the slope of ReLU (E[phi'^2] = 0.7 per layer" in message
    assert "28 % from the weights (0.8 per layer)" in message
    assert "28 % from the norms" in message


def test_activations_of_several_kinds_are_named_together():
    parts = [("activation", "relu", 0.8), ("activation", "tanh", 0.8), ("weight", "linear", 0.9)]
    message = finding_of("B201", decaying(*parts)).message
    assert "81 % of the change comes from the activations, 19 % from the weights" in message


@pytest.mark.parametrize(
    ("code", "part", "advice"),
    [
        ("B201", ("weight", "linear", 0.5), "Multiply the initial weights by 1.4"),
        ("B201", ("skip", "mul", 0.5), "Remove the factor on the skips"),
        ("B202", ("attention", "softmax", 2.0), "Normalize queries and keys"),
    ],
)
def test_the_advice_on_a_law_of_depth_is_about_its_only_cause(
    code: str, part: tuple[str, str, float], advice: str
):
    assert advice in finding_of(code, decaying(part)).action


def test_ops_without_a_measured_gain_have_no_part_in_the_cause():
    profile = decaying(("weight", "linear", 0.5))
    unknown = Factor(block=3, kind="norm", op="layer_norm")
    factors = Attribution(factors=(*profile.attribution.factors, unknown))
    assert finding_of("B201", replace(profile, attribution=factors)) == finding_of("B201", profile)


def test_without_weights_nothing_is_said_about_their_initialization():
    profile = decaying(("weight", "linear", 0.5))
    assert not is_default_init(profile, next(iter(backward_laws(profile))))


def test_without_a_safe_rate_the_advice_names_no_rate():
    update = replace(stack_with_update().update, safe_lr=None)
    assert lower_rate_action(update) == "Lower the learning rate, or warm it up with `leadline.nn.schedule`."


def float32_underflow() -> Profile:
    sick = CHECKS["N702"].sick
    return replace(sick, facts=replace(sick.facts, precision=replace(sick.facts.precision, dtype="float32")))


def unmeasured_logits() -> Profile:
    sick = CHECKS["I308"].sick
    return replace(sick, facts=replace(sick.facts, head=replace(sick.facts.head, logit_ms=None)))


@pytest.mark.parametrize(
    ("code", "make", "advice"),
    [
        ("W605", lambda: stack_with_decay(optimizer="NAdam"), "Pass `decoupled_weight_decay=True`"),
        ("N702", float32_underflow, "Fix the decay of the gradient before layers.0"),
        (
            "I308",
            unmeasured_logits,
            "Initialize the weight of the last layer with a smaller standard deviation",
        ),
        ("U509", lambda: replace(CHECKS["U509"].sick, update=None), "Lower the learning rate, or warm it up"),
    ],
)
def test_the_advice_follows_what_is_known_of_the_case(code: str, make: Callable[[], Profile], advice: str):
    assert advice in finding_of(code, make()).action


@pytest.mark.parametrize(
    ("rate", "words"), [(0.9, "Lower the dropout rate from p=0.9"), (0.0, "Raise the learning")]
)
def test_a_network_stuck_at_a_constant_is_first_told_of_its_dropout(rate: float, words: str):
    check = next(each for each in model_checks() if each.name == "stuck-at-constant")
    (finding,) = check(replace(check.sick, facts=ModelFacts(dropout=rate)))
    assert finding.action.startswith(words)


@pytest.mark.parametrize(
    ("factor", "words"),
    [
        (None, "Raise the learning rate to at least"),
        (2.0, "which is still safe"),
        (0.5, "Fix what makes the gradient small"),
    ],
)
def test_a_higher_rate_is_advised_only_as_far_as_it_is_safe(factor: float | None, words: str):
    check = next(each for each in model_checks() if each.name == "crawling-step")
    update = check.sick.update
    safe = None if factor is None else factor * update.lr
    (finding,) = check(replace(check.sick, update=replace(update, safe_lr=safe)))
    assert words in finding.action
