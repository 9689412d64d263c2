"""Small parts asked alone: what they answer where there is next to nothing to answer from."""

from __future__ import annotations

import math

import pytest
import torch
from msgspec.structs import replace
from torch import nn

import leadline
from leadline.errors import InputError
from leadline.fixes._engine.trial import read_batches
from leadline.lab.claim import Claim, all_claims, run_claims
from leadline.lab.phase.measure import correlation_scale
from leadline.lab.race.grid import Grid
from leadline.lab.race.page import format_interval
from leadline.lab.race.record import SeedInterval
from leadline.lab.sweeps import CellStore
from leadline.monitor import runfile
from leadline.nn.schedules import FullAgain, SlowStart
from leadline.readings.symmetry.equilibrium import equilibrium
from leadline.readings.symmetry.verification import relative_change
from leadline.records import ParamGroup, Symmetry
from leadline.report.charts.heat import Axis
from leadline.text import number, share
from leadline.tracer import stats


def test_the_public_names_are_listed_and_others_are_refused():
    assert {"check", "nn", "testing"} <= set(dir(leadline))
    assert leadline.testing.assert_trainable is not None
    with pytest.raises(AttributeError, match="no attribute 'Runner'"):
        _ = runfile.Runner


def test_a_tensor_of_no_elements_is_measured_the_same_on_every_path():
    assert stats.measure_deferred(torch.empty(0)) == stats.measure_now(torch.empty(0))


def test_outputs_that_become_no_numbers_have_changed_without_bound():
    one, other = torch.tensor([1.0, 2.0]), torch.tensor([1.0, math.nan])
    assert relative_change([one], [other]) == math.inf
    assert relative_change([other], [other]) == 0.0
    assert relative_change([], []) == 0.0


def test_coupled_decay_without_a_gradient_has_no_equilibrium():
    group = ParamGroup(parameters=("w",), lr=0.1, weight_decay=0.1, options={"betas": [0.9, 0.99]})
    assert equilibrium("Adam", group, count=10, radius=None) is None
    assert equilibrium("Adam", group, count=10, radius=1.0) is not None
    assert equilibrium("Unheard", group, count=10, radius=1.0) is None


def test_an_empty_line_of_a_store_is_no_cell(tmp_path):
    store = CellStore(tmp_path / "cells.jsonl")
    store.add("a", {"x": 1}, {"y": 2})
    store.path.write_text(store.path.read_text() + "\n\n")
    again = CellStore(store.path)
    assert len(again) == 1
    assert again.torn == 0


def test_a_mean_that_is_no_number_is_a_divergence():
    assert format_interval(SeedInterval(mean=math.inf, half=None)) == "diverged"


def test_progress_of_the_lab_names_each_claim():
    told = []
    quick = next(each for each in all_claims() if not each.slow)
    run_claims([quick], "0.1.0", seeds=2, progress=lambda *format_interval: told.append(format_interval))
    assert told == [(0, 1, quick.code)]


def test_two_claims_of_one_code_are_an_error(monkeypatch: pytest.MonkeyPatch):
    first: Claim = all_claims()[0]
    all_claims.cache_clear()
    monkeypatch.setattr("leadline.lab.claim.collect", lambda *_: [first, first])
    with pytest.raises(ValueError, match=f"two claims have the code {first.code}"):
        all_claims()
    monkeypatch.undo()
    all_claims.cache_clear()


def test_a_slow_start_ends_and_leaves_the_rate_to_its_owner():
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=1.0)
    before, after, seen = SlowStart(2), FullAgain(2), []
    for _ in range(4):
        before(optimizer, (), {})
        seen.append(optimizer.param_groups[0]["lr"])
        after(optimizer, (), {})
    assert seen == [0.5, 1.0, 1.0, 1.0]


def test_a_model_that_is_none_is_refused_by_the_symmetries_too():
    with pytest.raises(InputError):
        leadline.symmetries("no model", torch.randn(2, 2))


def test_one_value_on_an_axis_is_at_its_beginning():
    assert Axis(title="rate", values=[0.1]).place(5.0) == 0.0
    assert Axis(title="rate", values=[1.0, 100.0], log=True).place(10.0) == pytest.approx(0.5)


def test_a_share_that_was_not_measured_is_shown_as_other_numbers_are():
    assert share(None) == number(None)
    assert share(math.nan) == number(math.nan)
    assert share(0.5) == "50 %"


def test_a_penalty_that_was_not_measured_has_no_free_share():
    group = Symmetry(generators=(), tensors=(), decayed=False, penalty=2.0, least=1.0, eps=(), held=())
    assert group.free_share == 0.5
    assert replace(group, least=None).free_share is None


@pytest.mark.parametrize(("field", "value"), [("data", "novels"), ("optimizer", "magic"), ("depths", ())])
def test_a_race_that_nobody_can_run_is_refused(field: str, value: object):
    with pytest.raises(InputError, match=field):
        Grid(**{"data": "text", "schemes": ("pre",), "depths": (1,), "rates": (0.1,), field: value})


def test_a_stack_whose_signal_dies_has_no_scale_of_correlation():
    assert correlation_scale("relu", 0.5, 0.0) == 0.0
    assert correlation_scale("tanh", 1.5, 0.05) > 0


def test_a_batch_may_be_a_list_of_one_input():
    case = leadline.Case(
        nn.Linear(3, 3), torch.randn(2, 3), loss=lambda y: y.sum(), batches=[[torch.ones(2, 3)]]
    )
    ((inputs, targets),) = read_batches(case, 1).each
    assert targets is None
    assert torch.equal(inputs, torch.ones(2, 3))
