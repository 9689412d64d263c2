"""Phase diagrams: theory's curves, how well they separate the networks, and a small diagram from end to end."""

import math

import pytest

from leadline.errors import InputError
from leadline.lab.phase.measure import (
    assemble,
    balanced_accuracy,
    best_multiple,
    correlation_scale,
    edge_power,
    phase,
    separate,
    theory_reach,
)
from leadline.lab.phase.page import PHASE_FORMATS
from leadline.lab.phase.plan import KINDS, PhasePlan
from leadline.lab.phase.record import Phase
from leadline.lab.sweeps import CellStore
from leadline.readings.theory.criticality import depth_scale
from leadline.report.look import Look

SMALL = PhasePlan(
    values=(0.5, 2.0), depths=(1, 3, 12), rates=(0.1,), steps=60, width=16, batch=16, samples=128
)


@pytest.mark.parametrize("gain", [0.5, 1.0, 1.5])
def test_in_the_ordered_phase_inputs_and_gradients_have_the_same_depth_scale(gain):
    assert correlation_scale("tanh", gain, 0.05) == pytest.approx(
        depth_scale("tanh", gain, 0.05).xi, rel=1e-3
    )


def test_in_the_chaotic_phase_inputs_diverge_more_slowly_than_gradients_grow():
    assert correlation_scale("tanh", 4.0, 0.05) > 1.5 * depth_scale("tanh", 4.0, 0.05).xi


def test_at_the_critical_gain_the_depth_scale_exceeds_a_thousand_layers():
    assert correlation_scale("tanh", 1.761, 0.05) > 1000


def test_a_sampled_correlation_converges_with_the_predicted_depth_scale():
    """Send two inputs through one wide random layer after the other."""
    import torch

    generator = torch.Generator().manual_seed(0)
    n, gain, bias = 3000, 0.8, 0.05
    x = torch.randn(2, n, generator=generator)
    x[1] = 0.6 * x[0] + 0.8 * x[1]
    distances = []
    for _ in range(8):
        weight = math.sqrt(gain / n) * torch.randn(n, n, generator=generator)
        x = torch.tanh(x) @ weight + math.sqrt(bias) * torch.randn(n, generator=generator)
        distances.append(1 - float(torch.cosine_similarity(x[0], x[1], dim=0)))
    measured = math.log(distances[3] / distances[7]) / 4
    assert measured == pytest.approx(1 / correlation_scale("tanh", gain, bias), rel=0.1)


def test_a_rule_that_is_right_everywhere_has_balanced_accuracy_one():
    outcomes = [(0.5, True), (1.0, True), (8.0, False)]
    assert balanced_accuracy(outcomes, 6.0) == 1.0
    assert balanced_accuracy(outcomes, 0.7) == 0.75
    assert balanced_accuracy(outcomes[:2], 6.0) is None


def test_the_best_multiple_lies_between_what_trained_and_what_did_not():
    assert 1.0 < best_multiple([(0.5, True), (1.0, True), (8.0, False), (9.0, False)]) < 8.0


def test_the_fitted_multiple_is_scored_on_columns_it_was_not_fitted_on():
    good, bad = [(1.0, True), (4.0, False)], [(1.0, False), (4.0, True)]
    assert separate([good, bad, good, bad], stated=2.0).at_fitted == 0.0
    assert separate([good, good], stated=2.0).at_fitted == 1.0


def test_the_power_of_an_edge_is_recovered():
    depths, values = (4, 16, 64), tuple(2.0**-at for at in range(12))
    columns = [[1.0 if value <= 1.01 / depth else 0.1 for depth in depths] for value in values]
    assert edge_power(depths, values, columns) == pytest.approx(-1.0, abs=0.01)


def test_a_depth_that_does_best_at_the_lowest_value_has_no_edge():
    depths, values = (4, 8, 16, 32), (0.1, 0.2, 0.4, 0.8, 1.6)
    best = [0.8, 0.4, 0.2, None]
    lost = [0.7, 0.3, 0.1, 0.1, 0.1]
    columns = [
        [0.9 + (value == top) / 20 if value <= top else 0.1 for top in best[:3]] + [lost[at]]
        for at, value in enumerate(values)
    ]
    assert edge_power(depths, values, columns) == pytest.approx(-1.0, abs=0.01)


def test_rates_below_the_best_one_are_left_out_of_the_separation():
    columns = [[0.1, 0.1], [0.9, 0.9], [0.9, 0.1], [0.1, 0.1]]
    found = assemble("rate", PhasePlan(depths=(4, 40)), (0.001, 0.01, 0.1, 1.0), columns)
    assert found.separation.networks == 6  # the slowest column is left out


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    path = tmp_path_factory.mktemp("phase") / "cells.jsonl"
    return phase("gain", SMALL, store=CellStore(path)), path


def test_a_shallow_network_learns_and_one_far_beyond_its_reach_does_not(small):
    found, _ = small
    assert found.accuracy[0][1] > 0.55
    assert found.accuracy[2][0] < 0.3
    assert found.reach[0] * 6 < 12


def test_a_finished_diagram_is_not_measured_again(small):
    found, path = small
    before = path.read_text()
    assert phase("gain", SMALL, store=CellStore(path)) == found
    assert path.read_text() == before


def test_a_diagram_survives_json(small):
    assert Phase.from_json(small[0].to_json()) == small[0]


def test_a_diagram_is_rendered_as_text_and_as_html(small):
    text, page = (PHASE_FORMATS[name](small[0], Look()) for name in ("text", "html"))
    assert text.splitlines()[1].startswith("    12 │")
    assert page.count('class="ll-heat"') == 6
    assert "balanced accuracy" in page


@pytest.mark.parametrize("kind", KINDS)
def test_the_reach_has_at_most_one_peak(kind):
    values = KINDS[kind].values
    reach = [theory_reach(kind, value, KINDS[kind].activation, KINDS[kind].bias) for value in values]
    peak = reach.index(max(reach))
    assert reach[:peak] == sorted(reach[:peak])
    assert reach[peak:] == sorted(reach[peak:], reverse=True)


@pytest.mark.parametrize("bad", [{"depths": (0,)}, {"values": (-1.0,)}, {"steps": 0}])
def test_an_invalid_plan_is_refused(bad):
    with pytest.raises(InputError, match="expected"):
        PhasePlan(**bad)


def test_an_unknown_kind_of_diagram_is_refused():
    with pytest.raises(InputError, match="gain, rate, residual"):
        phase("width")


def test_the_correlation_scale_is_zero_where_the_signal_vanishes():
    assert correlation_scale("relu", 0.5, 0.0) == 0.0
    assert correlation_scale("tanh", 1.5, 0.05) > 0
