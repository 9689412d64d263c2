"""League tables and transfer from finishes that were made up, so that what must come out is known."""

import math

import msgspec
import pytest

from leadline.lab.race.page import RACE_FORMATS, last_steps, league_rows, summary_text, transfer_rows
from leadline.lab.race.record import Race, SeedInterval
from leadline.lab.race.standings import NetworkResult, build_race, league_table, rate_transfers
from leadline.report.layout import Look

RATES = (1e-3, 1e-2, 1e-1)


def bowl(scheme, depth, *, best, floor, seeds=3, rates=RATES):
    """Losses on a parabola in log rate with its lowest point at `best`; seeds differ by a little."""
    return [
        NetworkResult(
            scheme=scheme,
            depth=depth,
            rate=rate,
            seed=seed,
            valid=floor + math.log(rate / best) ** 2 / 10 + 0.01 * seed,
            held_out=floor + math.log(rate / best) ** 2 / 10 + 0.01 * seed,
            curve=(4.0, 3.0),
        )
        for rate in rates
        for seed in range(seeds)
    ]


def test_schemes_are_ranked_by_the_loss_at_their_own_best_rate():
    cells = [*bowl("post", 12, best=1e-3, floor=2.0), *bowl("pre", 12, best=1e-2, floor=1.0)]
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


def test_a_small_lead_over_few_seeds_is_no_lead():
    near = [*bowl("pre", 12, best=1e-2, floor=1.0), *bowl("post", 12, best=1e-2, floor=1.001)]
    noisy = [
        NetworkResult(**{**_fields(cell), "held_out": cell.held_out + 0.05 * (-1) ** cell.seed})
        if cell.scheme == "post"
        else cell
        for cell in near
    ]
    assert [row.level for row in league_table(noisy, 12, 2.95)] == [True, True]
    far = [*bowl("pre", 12, best=1e-2, floor=1.0), *bowl("post", 12, best=1e-2, floor=1.5)]
    assert [row.level for row in league_table(far, 12, 2.95)] == [True, False]


def _fields(cell):
    return {name: getattr(cell, name) for name in cell.__struct_fields__}


def test_a_diverged_network_is_last_and_costs_no_more_than_having_learned_nothing():
    broken = [
        NetworkResult(**{**_fields(c), "valid": math.nan, "held_out": math.nan})
        for c in bowl("post", 12, best=1, floor=1)
    ]
    table = league_table([*broken, *bowl("pre", 12, best=1e-2, floor=1.0)], 12, 2.95)
    assert [row.scheme for row in table] == ["pre", "post"]
    assert math.isinf(table[1].loss.mean)
    assert table[1].sensitivity == 0


@pytest.mark.parametrize("power", [0.0, -0.5, -1.0])
def test_the_power_with_which_the_best_rate_falls_is_found(power):
    rates = tuple(10 ** (-4 + 0.5 * at) for at in range(9))
    cells = [
        cell
        for depth in (4, 16, 64)
        for cell in bowl("pre", depth, best=0.05 * (depth / 4) ** power, floor=1.0, rates=rates)
    ]
    (found,) = rate_transfers(cells, "adam", 2.95)
    assert found.power.mean == pytest.approx(power, abs=1e-6)


def test_no_power_is_given_where_the_best_rate_is_at_the_edge_of_a_grid():
    cells = [cell for depth in (4, 16) for cell in bowl("pre", depth, best=1e-3, floor=1.0)]
    assert rate_transfers(cells, "adam", 2.95)[0].power is None


def test_no_power_is_given_where_nothing_was_learned():
    cells = [cell for depth in (4, 16) for cell in bowl("pre", depth, best=1e-2, floor=depth / 5)]
    (found,) = rate_transfers(cells, "adam", 2.95)
    assert (found.power, found.known) == (None, (True, False))


def test_a_power_is_that_of_the_depths_whose_best_rate_is_known():
    cells = [
        *(cell for depth in (4, 16) for cell in bowl("pre", depth, best=1e-2, floor=1.0)),
        *bowl("pre", 64, best=1e-3, floor=1.0),
    ]
    (found,) = rate_transfers(cells, "adam", 2.95)
    assert found.known == (True, True, False)
    assert found.power.mean == pytest.approx(0.0, abs=1e-9)
    assert "64: (0.00100)" in transfer_rows([found])[0][1]


@pytest.mark.parametrize(
    ("scheme", "adam", "sgd"),
    [("pre", -1, -1), ("residual-sqrt", -0.5, 0), ("keel", 0, 1), ("keel+groups", 0, 0)],
)
def test_theory_says_how_the_best_rate_moves(scheme, adam, sgd):
    cells = [cell for depth in (4, 16) for cell in bowl(scheme, depth, best=1e-2, floor=1.0)]
    assert rate_transfers(cells, "adam", 2.95)[0].predicted == adam
    assert rate_transfers(cells, "sgd", 2.95)[0].predicted == sgd


def made_up():
    budget = {"data": "text", "optimizer": "adam", "steps": 1, "batch": 1, "width": 8, "time": 16}
    cells = [
        *bowl("pre", 4, best=1e-2, floor=1.0),
        *bowl("post", 4, best=1e-2, floor=1.5),
        *bowl("pre", 16, best=1e-3, floor=1),
    ]
    results = ("valid", "held_out", "curve")
    pairs = [
        (
            {**budget, **{name: value for name, value in _fields(cell).items() if name not in results}},
            {name: getattr(cell, name) for name in results},
        )
        for cell in cells
    ]
    return build_race(pairs, base_rate=2.95)


def test_a_race_survives_json():
    assert Race.from_json(made_up().to_json()) == made_up()


def test_a_race_is_told_in_words_and_on_a_page():
    text = RACE_FORMATS["text"](made_up(), Look())
    assert "At 4 blocks pre leads with 1.01" in text
    page = RACE_FORMATS["html"](made_up(), Look())
    assert page.count("<table>") == 3
    assert "How the best rate moves with depth" in page


@pytest.mark.parametrize("burst", [5e4, math.nan])
def test_a_neighbour_that_diverged_does_not_push_the_best_rate_away(burst):
    """Best at 0.01, a little worse at 0.001, lost at 0.1: the lowest point is at 0.0044, however lost."""
    losses = {1e-3: 2.5, 1e-2: 2.4}
    cells = [
        NetworkResult(scheme="pre", depth=depth, rate=rate, seed=0, valid=loss, held_out=loss, curve=(4.0,))
        for depth in (4, 16)
        for rate, loss in {**losses, 1e-1: burst}.items()
    ]
    (found,) = rate_transfers(cells, "adam", 3.0)
    assert found.optima == pytest.approx((4.4e-3, 4.4e-3), rel=0.01)


def test_where_nobody_learned_anything_nobody_leads():
    race = msgspec.structs.replace(made_up(), base_rate=0.5)
    assert "leads" not in summary_text(race)
    assert summary_text(race).count("no scheme learned more") == 2


def test_one_seed_tells_nobody_apart():
    race = made_up()
    (first, *rest), *_ = race.tables
    alone = msgspec.structs.replace(first, loss=SeedInterval(mean=1.0, half=None))
    told = summary_text(msgspec.structs.replace(race, tables=((alone, *rest),)))
    assert "one seed tells nobody apart" in told
    assert "level" not in told


def test_no_line_is_wider_than_a_narrow_terminal_and_losses_are_always_there():
    text = RACE_FORMATS["text"](made_up(), Look(width=50))
    assert max(map(len, text.splitlines())) <= 50
    assert "held-out loss" in text
    assert "sensitivity" not in text
    assert "power of depth" in text


def test_a_loss_below_the_best_by_rounding_is_not_written_as_minus_nothing():
    (first, *_), *_ = made_up().tables
    almost = msgspec.structs.replace(first, sensitivity=-1e-4)
    assert league_rows([almost])[0][-1] == "0.00"


@pytest.mark.parametrize(
    ("steps", "points", "ends"), [(80, 40, ("2", "80")), (100, 34, ("3", "100")), (3, 3, ("1", "3"))]
)
def test_points_of_a_curve_are_named_by_their_steps(steps, points, ends):
    names = last_steps(steps, points)
    assert (len(names), names[0], names[-1]) == (points, *ends)
