"""League tables and rate transfers from synthetic results, whose correct ranking is known."""

import math

import msgspec
import pytest

from leadline.lab.race.page import (
    RACE_FORMATS,
    format_interval,
    last_steps,
    league_rows,
    summary_text,
    transfer_rows,
)
from leadline.lab.race.record import Race, SeedInterval
from leadline.lab.race.standings import NetworkResult, league_table, rate_transfers
from leadline.report.look import Look
from tests.support.lab_results import fields_of, parabola, synthetic_race


def test_schemes_are_ranked_by_the_loss_at_their_own_best_rate():
    cells = [*parabola("post", 12, best=1e-3, floor=2.0), *parabola("pre", 12, best=1e-2, floor=1.0)]
    table = league_table(cells, 12, 2.95)
    assert [(row.scheme, row.rate) for row in table] == [("pre", 1e-2), ("post", 1e-3)]
    assert table[0].loss.mean == pytest.approx(1.01)
    assert table[1].behind.mean == pytest.approx(1.0)
    assert (table[0].at_edge, table[1].at_edge) == (False, True)


def test_the_rate_is_chosen_on_validation_and_the_loss_is_held_out():
    cells = [
        NetworkResult(scheme="pre", depth=1, rate=rate, seed=0, valid=valid, held_out=held_out, curve=(4.0,))
        for rate, valid, held_out in ((0.1, 1.0, 3.0), (0.2, 2.0, 1.0))
    ]
    (row,) = league_table(cells, 1, 2.95)
    assert (row.rate, row.loss.mean) == (0.1, 3.0)


def test_a_lead_within_the_noise_of_the_seeds_counts_as_a_tie():
    near = [*parabola("pre", 12, best=1e-2, floor=1.0), *parabola("post", 12, best=1e-2, floor=1.001)]
    noisy = [
        NetworkResult(**{**fields_of(cell), "held_out": cell.held_out + 0.05 * (-1) ** cell.seed})
        if cell.scheme == "post"
        else cell
        for cell in near
    ]
    assert [row.level for row in league_table(noisy, 12, 2.95)] == [True, True]
    far = [*parabola("pre", 12, best=1e-2, floor=1.0), *parabola("post", 12, best=1e-2, floor=1.5)]
    assert [row.level for row in league_table(far, 12, 2.95)] == [True, False]


def test_a_diverged_network_ranks_last_and_counts_as_having_learned_nothing():
    broken = [
        NetworkResult(**{**fields_of(c), "valid": math.nan, "held_out": math.nan})
        for c in parabola("post", 12, best=1, floor=1)
    ]
    table = league_table([*broken, *parabola("pre", 12, best=1e-2, floor=1.0)], 12, 2.95)
    assert [row.scheme for row in table] == ["pre", "post"]
    assert math.isinf(table[1].loss.mean)
    assert table[1].sensitivity == 0


@pytest.mark.parametrize("power", [0.0, -0.5, -1.0])
def test_the_power_of_the_best_rate_is_recovered(power):
    rates = tuple(10 ** (-4 + 0.5 * at) for at in range(9))
    cells = [
        cell
        for depth in (4, 16, 64)
        for cell in parabola("pre", depth, best=0.05 * (depth / 4) ** power, floor=1.0, rates=rates)
    ]
    (transfer,) = rate_transfers(cells, "adam", 2.95)
    assert transfer.power.mean == pytest.approx(power, abs=1e-6)


def test_no_power_is_reported_if_the_best_rate_is_at_the_edge_of_the_grid():
    cells = [cell for depth in (4, 16) for cell in parabola("pre", depth, best=1e-3, floor=1.0)]
    assert rate_transfers(cells, "adam", 2.95)[0].power is None


def test_no_power_is_reported_if_nothing_was_learned():
    cells = [cell for depth in (4, 16) for cell in parabola("pre", depth, best=1e-2, floor=depth / 5)]
    (transfer,) = rate_transfers(cells, "adam", 2.95)
    assert (transfer.power, transfer.known) == (None, (True, False))


def test_the_power_uses_only_depths_whose_best_rate_is_known():
    cells = [
        *(cell for depth in (4, 16) for cell in parabola("pre", depth, best=1e-2, floor=1.0)),
        *parabola("pre", 64, best=1e-3, floor=1.0),
    ]
    (transfer,) = rate_transfers(cells, "adam", 2.95)
    assert transfer.known == (True, True, False)
    assert transfer.power.mean == pytest.approx(0.0, abs=1e-9)
    assert "64: (0.00100)" in transfer_rows([transfer])[0][1]


@pytest.mark.parametrize(
    ("scheme", "adam", "sgd"),
    [("pre", -1, -1), ("residual-sqrt", -0.5, 0), ("keel", 0, 1), ("keel+groups", 0, 0)],
)
def test_theory_predicts_how_the_best_rate_changes_with_depth(scheme, adam, sgd):
    cells = [cell for depth in (4, 16) for cell in parabola(scheme, depth, best=1e-2, floor=1.0)]
    assert rate_transfers(cells, "adam", 2.95)[0].predicted == adam
    assert rate_transfers(cells, "sgd", 2.95)[0].predicted == sgd


def test_a_race_survives_json():
    assert Race.from_json(synthetic_race().to_json()) == synthetic_race()


def test_a_race_is_rendered_as_text_and_as_html():
    text = RACE_FORMATS["text"](synthetic_race(), Look())
    assert "At 4 blocks pre leads with 1.01" in text
    page = RACE_FORMATS["html"](synthetic_race(), Look())
    assert page.count("<table>") == 3
    assert "How the best rate moves with depth" in page


@pytest.mark.parametrize("burst", [5e4, math.nan])
def test_a_diverged_neighbor_does_not_move_the_best_rate(burst):
    """Best at 0.01, slightly worse at 0.001, diverged at 0.1: the minimum is at 0.0044 for any diverged loss."""
    losses = {1e-3: 2.5, 1e-2: 2.4}
    cells = [
        NetworkResult(scheme="pre", depth=depth, rate=rate, seed=0, valid=loss, held_out=loss, curve=(4.0,))
        for depth in (4, 16)
        for rate, loss in {**losses, 1e-1: burst}.items()
    ]
    (transfer,) = rate_transfers(cells, "adam", 3.0)
    assert transfer.optima == pytest.approx((4.4e-3, 4.4e-3), rel=0.01)


def test_no_scheme_leads_if_none_learned_anything():
    race = msgspec.structs.replace(synthetic_race(), base_rate=0.5)
    assert "leads" not in summary_text(race)
    assert summary_text(race).count("no scheme did better") == 2


def test_a_single_seed_does_not_separate_schemes():
    race = synthetic_race()
    (first, *rest), *_ = race.tables
    alone = msgspec.structs.replace(first, loss=SeedInterval(mean=1.0, half=None))
    summary = summary_text(msgspec.structs.replace(race, tables=((alone, *rest),)))
    assert "a single seed cannot separate" in summary
    assert "tied" not in summary


def test_text_fits_a_narrow_terminal_and_always_shows_the_losses():
    text = RACE_FORMATS["text"](synthetic_race(), Look(width=50))
    assert max(map(len, text.splitlines())) <= 50
    assert "held-out loss" in text
    assert "sensitivity" not in text
    assert "power of depth" in text


def test_a_sensitivity_that_rounds_to_zero_has_no_minus_sign():
    (first, *_), *_ = synthetic_race().tables
    almost = msgspec.structs.replace(first, sensitivity=-1e-4)
    assert league_rows([almost])[0][-1] == "0.00"


@pytest.mark.parametrize(
    ("steps", "points", "ends"), [(80, 40, ("2", "80")), (100, 34, ("3", "100")), (3, 3, ("1", "3"))]
)
def test_points_of_a_curve_are_labeled_with_their_steps(steps, points, ends):
    names = last_steps(steps, points)
    assert (len(names), names[0], names[-1]) == (points, *ends)


def test_an_infinite_mean_loss_is_shown_as_diverged():
    assert format_interval(SeedInterval(mean=math.inf, half=None)) == "diverged"
