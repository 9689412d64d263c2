"""Small things of a watch: what a loss may be, what an alert says, what a store may be called."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from leadline.errors import InputError
from leadline.monitor.arguments import alert_text, validate_store
from leadline.monitor.parameters import build_parameter_table
from leadline.monitor.step_record import to_number
from leadline.records.run import Alert


def test_a_loss_may_be_a_number_a_tensor_of_one_or_of_many():
    assert to_number(2.5) == 2.5
    assert to_number(torch.tensor(2.5, requires_grad=True)) == 2.5
    assert to_number(torch.tensor([1.0, 2.0])) == 1.5
    assert to_number(nn.Parameter(torch.tensor(3.0))) == 3.0


def alert(state: str, **more: str) -> Alert:
    return Alert(
        code="T801", name="spike", severity="warning", message="it jumped", where="head", since=3, step=9,
        state=state, **more,
    )  # fmt: skip


def test_an_alert_says_what_where_and_what_next_and_that_it_is_over():
    assert (
        alert_text(alert("raised", forecast="NaN soon")) == "step 9: T801 spike (head): it jumped; NaN soon"
    )
    assert alert_text(alert("cleared")) == "step 9: T801 spike is over"


@pytest.mark.parametrize("store", [3, ["run.leadline"]], ids=str)
def test_a_store_is_a_path(store):
    with pytest.raises(InputError, match="the path of a file"):
        validate_store(store)


def test_a_parameter_that_only_the_optimizer_holds_has_a_name():
    model, alone = nn.Linear(2, 2), nn.Parameter(torch.ones(3))
    table = build_parameter_table(model, [torch.optim.SGD([*model.parameters(), alone], lr=0.1)])
    assert "outside the model, (3,), 2" in table.names
