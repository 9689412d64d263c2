"""What single alarms say beyond the laws that all keep."""

from __future__ import annotations

import math
import random

import pytest

from leadline.checks import run_checks
from leadline.checks._examples import constant, noisy, scalar_history, vector_history
from leadline.checks._history import ABSENT, FROZEN, NOT_OPTIMIZED, History, NonFiniteOrigin, RunLayout
from leadline.checks._ranges import consecutive_ranges, layer_names, locate_parameters
from leadline.checks._statistics import noise, robust_deviation, score, slope
from leadline.checks.run.heavy_clipping import audit_clipping
from leadline.monitor.alerts import AlertTracker
from leadline.records.run import Sample

RUN_CHECKS = {each.code: each for each in run_checks()}


def first(code: str, history: History):
    return next(iter(RUN_CHECKS[code](history)), None)


def test_a_spike_names_the_layers_whose_update_stands_out():
    rows = {"update_norm": lambda step: [0.1, 0.1, 9.0 if step == 195 else 0.1, 0.1, 0.1, 0.1]}
    numbers = {"update_norm": lambda step: 9.0 if step == 195 else 0.25, "lr": constant(0.1)}
    alert = first("T801", vector_history(198, rows, numbers=numbers))
    assert (alert.since, alert.where, alert.layers) == (195, "layers.2.weight", (2, 2))


def test_a_spike_of_the_learning_rate_is_not_a_spike_of_the_update():
    jump = {"lr": lambda step: 1.0 if step == 195 else 0.1}
    assert first("T801", scalar_history(198, update_norm=lambda step: 20 * jump["lr"](step), **jump)) is None


def test_one_odd_batch_is_not_a_spike_of_the_loss_but_three_are():
    def loss(odd):
        return lambda step: noisy(constant(2.0), 0.02)(step) * (5.0 if 200 - odd <= step else 1.0)

    assert first("T801", scalar_history(200, loss=loss(2))) is None
    assert first("T801", scalar_history(200, loss=loss(3))).severity == "error"


@pytest.mark.parametrize("first_odd", range(300, 306))
def test_a_spike_between_two_looks_is_reported(first_odd):
    """A fast loop asks its alarms every few hundred steps; any three in a row count, wherever they fall."""
    calm = noisy(constant(2.0), 0.02)
    history, tracker = History(), AlertTracker(run_checks())

    def train(first: int, end: int) -> list[str]:
        odd = range(first_odd, first_odd + 3)
        losses = [calm(step) * (5.0 if step in odd else 1.0) for step in range(first, end)]
        history.add_rows(range(first, end), {"loss": losses})
        return [each.code for each in tracker.update(history)]

    assert train(0, 200) == []
    assert train(200, 500) == ["T801"]


def test_a_spike_is_reported_only_once():
    history = scalar_history(
        300, loss=lambda step: noisy(constant(2.0), 0.02)(step) * (5.0 if 200 <= step < 203 else 1.0)
    )
    history.last_check_step = 250
    assert first("T801", history) is None


def test_a_spike_names_the_metric_that_moved_first():
    numbers = {
        "update_norm": lambda step: 9.0 if step == 194 else noisy(constant(0.1), 0.05)(step),
        "loss": lambda step: noisy(constant(2.0), 0.02)(step) * (5.0 if step >= 196 else 1.0),
    }
    alert = first("T801", scalar_history(200, **numbers))
    assert alert.message.endswith("the update moved first, at step 194")
    assert (alert.since, alert.severity) == (194, "error")


def test_a_plateau_after_learning_is_a_note():
    learnt = scalar_history(900, loss=lambda step: noisy(constant(3.0 if step < 200 else 0.5), 0.01)(step))
    assert first("T802", learnt).severity == "info"
    assert first("T802", scalar_history(900, loss=noisy(constant(3.0), 0.01))).severity == "warning"


def test_a_rising_loss_is_a_divergence_and_not_a_plateau():
    rising = scalar_history(
        600, loss=lambda step: noisy(constant(1.0), 0.05)(step) * math.exp(max(0, step - 400) / 60)
    )
    assert first("T802", rising) is None
    alert = first("T803", rising)
    assert 380 <= alert.since <= 420
    assert "doubles in about" in alert.forecast


def test_a_loss_that_rises_and_comes_back_does_not_diverge():
    bump = scalar_history(
        600, loss=lambda step: noisy(constant(1.0), 0.05)(step) * (3.0 if 500 <= step < 520 else 1.0)
    )
    assert first("T803", bump) is None


@pytest.mark.parametrize(
    ("last", "severity"),
    [(-900.0, None), (-1100.0, "error"), (1100.0, None)],  # after losses around 1
)
def test_a_loss_falls_without_end_if_it_is_a_thousand_times_below_where_it_began(last, severity):
    history = scalar_history(64, loss=lambda step: 1.0 if step < 40 else last)
    found = first("T840", history)
    assert (found and found.severity) == severity


def test_a_score_that_another_network_pays_may_grow_far():
    history = scalar_history(64, loss=lambda step: 1.0 - 2.0**step, opponents=constant(1.0))
    assert first("T840", history).severity == "info"


def test_the_forecast_of_dying_units_extrapolates_a_straight_line():
    dying = vector_history(401, {"dead": lambda step: [step / 800] * 6}, every=20)
    alert = first("T804", dying)
    assert alert.layers == (0, 5)
    assert int(alert.forecast.split()[-2]) == pytest.approx(800 - 380, abs=40)


def test_frozen_parameters_need_no_gradient():
    rows = {"grad_norm": lambda _: [FROZEN, ABSENT, 1.0, 1.0, 1.0, 1.0]}
    alert = first("T812", vector_history(40, rows))
    assert (alert.where, alert.evidence["parameters"]) == ("layers.1.weight", 5.0)


def test_a_gradient_that_stopped_is_worse_than_one_that_never_was():
    stopped = vector_history(80, {"grad_norm": lambda step: [1.0 if step < 40 else ABSENT] + [1.0] * 5})
    alert = first("T812", stopped)
    assert alert.severity == "warning"
    assert 32 < alert.since <= 48


def test_parameters_that_no_optimizer_holds_are_named_unless_only_a_head_is_trained():
    def rows(unheld):
        return {
            "grad_norm": lambda _: [NOT_OPTIMIZED] * unheld + [1.0] * (6 - unheld),
            "update_norm": lambda _: [ABSENT] * unheld + [0.1] * (6 - unheld),
        }

    forgotten = first("T811", vector_history(40, rows(2), numbers={"lr": constant(0.1)}))
    assert (forgotten.severity, forgotten.layers) == ("warning", (0, 1))
    assert forgotten.message.endswith("no watched optimizer holds them")
    assert first("T811", vector_history(40, rows(5), numbers={"lr": constant(0.1)})).severity == "info"


def test_nothing_moving_at_all_is_an_error():
    rows = {"grad_norm": lambda _: [1.0] * 6, "update_norm": lambda _: [0.0] * 6}
    assert first("T811", vector_history(40, rows, numbers={"lr": constant(0.1)})).severity == "error"
    assert first("T811", vector_history(40, rows, numbers={"lr": constant(0.0)})) is None


def test_the_audit_of_clipping_counts_steps_and_removed_shares():
    history = scalar_history(100, grad_clip=lambda step: 0.75 if step < 30 else 0.0, grad_norm=constant(4.0))
    found = audit_clipping(history)
    assert (found.steps, found.clipped, found.share, found.removed, found.removed_most) == (
        100,
        30,
        0.3,
        0.0,
        0.75,
    )
    assert (found.before, found.after) == (4.0, 4.0)
    always = audit_clipping(scalar_history(20, grad_clip=constant(0.75), grad_norm=constant(1.0)))
    assert (always.before, always.after) == (4.0, 1.0), "the optimizer received the clipped gradient"
    assert audit_clipping(scalar_history(5, loss=constant(1.0))) is None


def test_the_loss_of_one_batch_again_and_again_is_smooth():
    smooth = scalar_history(100, loss=lambda step: 2.0 * math.exp(-step / 50), grad_norm=constant(1.0))
    assert first("T810", smooth).severity == "info"
    assert first("T810", scalar_history(100, loss=noisy(constant(2.0), 0.001))) is None


def test_a_drift_is_reported_only_if_scale_invariance_is_known():
    rows = {"weight_norm": lambda step: [math.exp(step / 200)] * 6}
    assert first("T805", vector_history(600, rows)) is None


def test_gaussian_noise_raises_no_alarm_in_ten_thousand_steps():
    """Six deviations are one in a billion for a Gaussian; all else looks at medians."""
    draw, history, tracker = random.Random(0), History(), AlertTracker(run_checks())
    said = []
    for step in range(10_000):
        level = 0.5 + 2.0 * math.exp(-step / 3000)
        numbers = {
            "loss": level * math.exp(0.2 * draw.gauss(0, 1)),
            "grad_norm": math.exp(0.5 * draw.gauss(0, 1)),
            "update_norm": 0.1 * math.exp(0.1 * draw.gauss(0, 1)),
            "lr": 0.1,
        }
        history.add(Sample(step=step, scalars=numbers))
        said += tracker.update(history)
    assert [alert for alert in said if alert.severity != "info"] == []


def test_ranges_of_layers_are_named_by_their_ends():
    assert list(consecutive_ranges([5, 1, 2, 3, 9])) == [(1, 3), (5, 5), (9, 9)]
    assert layer_names(("a", "b", "c", "d"), [0, 1, 3]) == "a … b, d"
    assert layer_names((), [0, 2, 4, 6, 8]) == "0, 2, 4 and 2 more"


def test_parameters_of_several_blocks_are_named_by_block():
    layout = RunLayout(
        parameters=("a.w", "a.b", "b.w", "c.w"), blocks=("a", "b", "c"), parameter_blocks=(0, 0, 1, 2)
    )
    assert locate_parameters(layout, [0, 1, 2]) == ("a … b", (0, 1))
    assert locate_parameters(layout, [0, 1]) == ("a.w … a.b", (0, 0))


def test_robust_statistics_agree_with_the_plain_ones_on_gaussian_noise():
    draw = random.Random(1)
    values = [draw.gauss(3.0, 2.0) for _ in range(4000)]
    assert robust_deviation(values) == pytest.approx(2.0, rel=0.06)
    assert noise(values) == pytest.approx(2.0, rel=0.06)
    assert score(9.0, values, min_deviation=0.1) == pytest.approx(3.0, rel=0.06)
    assert slope([0, 1, 2, 3], [1.0, 3.0, 5.0, 7.0]) == pytest.approx(2.0)


def test_a_loss_that_passes_through_zero_has_a_trend_and_no_error():
    crossing = scalar_history(
        400, loss=lambda step: (step - 399) / 100 if step > 200 else -2.0 + 1e-3 * (step % 7)
    )
    assert all(
        math.isfinite(each.trend or 0.0) for code in ("T803", "T810") for each in RUN_CHECKS[code](crossing)
    )


def test_a_trend_does_not_count_as_noise():
    rising = [0.01 * step for step in range(100)]
    assert noise(rising) < robust_deviation(rising) / 10


def test_a_loss_that_jumped_and_stays_there_has_diverged():
    def loss(height):
        return lambda step: noisy(constant(0.5), 0.1)(step) * (height if step >= 400 else 1.0)

    seen = first("T803", scalar_history(700, loss=loss(3.0)))
    assert (seen.severity, 380 < seen.since < 400) == ("error", True)
    assert seen.forecast == "", "it does not rise any more"
    assert first("T803", scalar_history(700, loss=loss(1.1))) is None

    def back(step):
        return loss(3.0)(step) * (1.0 if step < 690 else 0.4)

    assert first("T803", scalar_history(720, loss=back)) is None


@pytest.mark.parametrize(
    ("now", "words"), [(2.0, "it never left its first value"), (1.86, "7 % below its first value")]
)
def test_a_plateau_states_its_distance_from_the_start(now, words):
    history = scalar_history(700, loss=lambda step: 2.0 if step < 40 else noisy(constant(now), 0.01)(step))
    seen = first("T802", history)
    assert seen.severity == "warning"
    assert words in seen.message


def test_gradients_that_stop_are_dated_to_the_step():
    rows = {"grad_norm": lambda step: [1.0, ABSENT if step >= 101 else 1.0]}
    assert first("T812", vector_history(120, rows)).since == 101


@pytest.mark.parametrize("last", [0.0, 2.0**-20])
def test_a_loss_scale_of_zero_has_collapsed_too(last):
    seen = first("T809", scalar_history(60, loss_scale=lambda step: 65536.0 if step < 50 else last))
    assert (seen.severity, seen.since) == ("error", 49)
    assert math.isfinite(seen.evidence["halvings"])


@pytest.mark.parametrize(("code", "metric"), [("T807", "branch_skip"), ("T808", "attention_logit")])
def test_exponential_growth_is_dated_and_forecast_in_logarithms(code, metric):
    """Still for 400 steps, then doubling every 40: it did not begin when it was nearly there."""
    rows = {metric: lambda step: [1.6 * 2 ** (max(0, step - 400) / 40)]}
    seen = first(code, vector_history(640, rows, every=20))
    assert 400 <= seen.since <= 470
    assert seen.trend == pytest.approx(math.log(2) / 40, rel=0.1)
    expected = 40 * (math.log2(10) if code == "T807" else 1)
    assert float(seen.forecast.split()[-2]) == pytest.approx(expected, rel=0.1)


def test_a_broken_loss_names_its_op_and_what_grew_before_it():
    def broken(**more):
        growth = {
            "grad_norm": lambda step: 1.5 ** max(0, step - 40),
            "loss": lambda step: math.nan if step == 59 else 2.0,
        }
        return scalar_history(60, **growth, **more)

    history = broken()
    assert "the gradient grew to" in first("T814", history).message
    assert first("T814", history).forecast == "every weight is NaN after the next step"
    history.non_finite_origins[59] = NonFiniteOrigin(op="log", sentence="log made it")
    assert first("T814", history).message.startswith(
        "at step 59 the loss is not finite: log made it; before it"
    )
    assert first("T814", broken(loss_scale=constant(1024.0))).forecast == "", (
        "a scaler leaves out such a step"
    )


def test_an_optimizer_that_steps_is_not_reported_as_still():
    rows = {"grad_norm": lambda _: [1.0] * 6, "update_norm": lambda _: [0.0] * 6}
    assert (
        "the optimizer steps but none of 6 parameters moves"
        in first("T811", vector_history(40, rows, numbers={"lr": constant(0.1)})).message
    )


def test_nan_is_not_an_error_in_a_run_that_skips_such_steps():
    history = scalar_history(60, loss=lambda step: math.nan if step == 59 else 2.0)
    assert first("T814", history).forecast
    history.skips_non_finite = True
    assert first("T814", history).forecast == ""


def test_parameters_that_no_optimizer_holds_are_reported_without_updates():
    """Updates are dear, and a watch with a small budget measures few; who holds what is known for nothing."""
    rows = {"grad_norm": lambda _: [1.0] * 5 + [NOT_OPTIMIZED]}
    assert first("T811", vector_history(40, rows, every=20)).message.startswith("1 of 6 parameters")
    assert first("T811", vector_history(10, rows)) is None, "a group may come a little later"


def test_a_loss_that_swings_around_zero_has_no_plateau():
    draw = random.Random(0)
    swings = [draw.gauss(0.02, 0.3) for _ in range(700)]
    assert first("T802", scalar_history(700, loss=lambda step: swings[step])) is None
    assert first("T802", scalar_history(700, loss=lambda step: swings[step] + 2)).severity == "warning"


def test_a_spike_of_the_loss_is_dated_to_its_first_step():
    heights = {195: 4.0, 196: 9.0, 197: 5.0}
    alert = first(
        "T801",
        scalar_history(199, loss=lambda step: noisy(constant(2.0), 0.02)(step) * heights.get(step, 1.0)),
    )
    assert alert.since == 195


def test_nothing_has_no_ranges_and_adds_no_step():
    history = History()
    history.add_rows([], {"loss": []})
    assert list(consecutive_ranges([])) == []
    assert history.step is None
