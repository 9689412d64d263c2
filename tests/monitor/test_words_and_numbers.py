"""Small things of a watch: what a loss may be, what an alert says, what a store may be called."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from leadline.errors import InputError
from leadline.monitor.arguments import checked_store, sentence
from leadline.monitor.non_finite import _spelled
from leadline.monitor.parameters import make_roster
from leadline.monitor.step_record import number
from leadline.records.run import Alert


def test_a_loss_may_be_a_number_a_tensor_of_one_or_of_many():
    assert number(2.5) == 2.5
    assert number(torch.tensor(2.5, requires_grad=True)) == 2.5
    assert number(torch.tensor([1.0, 2.0])) == 1.5
    assert number(nn.Parameter(torch.tensor(3.0))) == 3.0


def test_numbers_that_json_does_not_know_are_spelled_out():
    assert [_spelled(each) for each in (1.0, math.nan, math.inf, -math.inf)] == [
        1.0,
        "NaN",
        "Infinity",
        "-Infinity",
    ]


def alert(state: str, **more: str) -> Alert:
    return Alert(
        code="T801", name="spike", severity="warning", message="it jumped", where="head", since=3, step=9,
        state=state, **more,
    )  # fmt: skip


def test_an_alert_says_what_where_and_what_next_and_that_it_is_over():
    assert sentence(alert("raised", forecast="NaN soon")) == "step 9: T801 spike (head): it jumped; NaN soon"
    assert sentence(alert("cleared")) == "step 9: T801 spike is over"


@pytest.mark.parametrize("store", [3, ["run.leadline"]], ids=str)
def test_a_store_is_a_path(store):
    with pytest.raises(InputError, match="the path of a file"):
        checked_store(store)


def test_a_parameter_that_only_the_optimiser_knows_has_a_name_too():
    model, alone = nn.Linear(2, 2), nn.Parameter(torch.ones(3))
    roster = make_roster(model, [torch.optim.SGD([*model.parameters(), alone], lr=0.1)])
    assert "outside the model, (3,), 2" in roster.names
