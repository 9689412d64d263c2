"""What a trace says of how its ops were called: literals, constants, the optimizer, what samples have in common."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import leadline
from leadline.ops.arguments import argument, sequence, value_of
from leadline.records import Op, Trace
from leadline.records.codec import spell_float
from leadline.tracer.calls import MAX_LIST_ITEMS, NOT_JSON, read_arguments


class Spelled(nn.Module):
    """Calls ops in every spelling that a reader of arguments must understand."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(6))
        self.register_buffer("offset", torch.tensor(0.5))

    def forward(self, x: Tensor) -> Tensor:
        y = x.pow(3) * 0.5 + self.offset
        y = y.masked_fill(y > 2, -math.inf).clamp(min=-1.0)
        y = y.view(2, 2, 6).sum((0, 1), keepdim=True)[..., 1:4]
        return torch.cat([y, y], dim=-1) * self.scale


def op_of(trace: Trace, name: str) -> Op:
    return next(op for op in trace.ops if op.name == name)


@pytest.fixture(scope="module")
def spelled() -> Trace:
    return leadline.trace(Spelled(), torch.randn(4, 6), loss=lambda y: y.square().mean())


def test_an_op_keeps_its_literals(spelled: Trace):
    assert op_of(spelled, "pow").args[1] == 3
    assert op_of(spelled, "clamp").kwargs == {"min": -1.0}
    assert argument(op_of(spelled, "masked_fill"), "value", 2) == -math.inf
    assert op_of(spelled, "getitem").args[1] == ["...", {"slice": [1, 4, None]}]


def test_tensors_among_the_arguments_are_the_values_they_were(spelled: Trace):
    cat = op_of(spelled, "cat")
    assert [value_of(each) for each in cat.args[0]] == list(cat.inputs)
    assert value_of(op_of(spelled, "pow").args[1]) is None


def test_sizes_read_alike_as_a_list_and_as_many_arguments(spelled: Trace):
    assert sequence(op_of(spelled, "view"), "size", 1) == (2, 2, 6)
    assert sequence(op_of(spelled, "sum"), "dim", 1) == (0, 1)
    assert argument(op_of(spelled, "cat"), "dim", 1) == -1
    assert sequence(op_of(spelled, "clamp"), "max", 1) is None


class Width(int):
    """A number of its own class, as an enumeration of sizes has."""


class Mode(str):
    """A word of its own class."""


@pytest.mark.parametrize(
    ("given", "recorded"),
    [
        ([Mode("mean"), Width(3), None, True], ["mean", 3, None, True]),
        ([1.5, math.inf, torch.float16], [1.5, math.inf, "float16"]),
        ([torch.ones(2), object()], ["%0", NOT_JSON]),
        (list(range(MAX_LIST_ITEMS)), list(range(MAX_LIST_ITEMS))),
        (list(range(MAX_LIST_ITEMS + 1)), NOT_JSON),
    ],
)
def test_an_argument_is_recorded_as_plain_data(given: Any, recorded: Any):
    (found,) = read_arguments([given], {}, lambda tensor: 0).args
    assert found == (spelled_out(recorded) if isinstance(recorded, list) else recorded)
    json.dumps(found)


def spelled_out(recorded: list[Any]) -> list[Any]:
    return [spell_float(each) if isinstance(each, float) else each for each in recorded]


def test_a_constant_has_its_value(spelled: Trace):
    offset = next(value for value in spelled.values if value.name == "offset")
    assert (offset.source, offset.forward.mean) == ("buffer", 0.5)


def test_arguments_survive_json(spelled: Trace):
    assert Trace.from_json(spelled.to_json()) == spelled


def test_what_samples_share_is_one_for_equal_samples_and_small_for_independent_ones():
    def share(batch: Tensor) -> float:
        # Many units, so that the random weights hardly matter: the seeded samples decide.
        trace = leadline.trace(nn.Linear(64, 4096, bias=False), batch, loss=lambda y: y.square().mean())
        value = trace.values[op_of(trace, "linear").outputs[0]]
        return value.common_ms / value.forward.ms

    samples = torch.randn(256, 64, generator=torch.Generator().manual_seed(0))
    assert share(samples[:1].expand(256, 64)) == pytest.approx(1.0, rel=1e-5)
    assert share(samples) == pytest.approx(1 / 256, rel=0.5)  # 64 features: a relative sd of sqrt(2/64)


def test_the_optimizer_is_recorded_with_its_groups():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    groups = [
        {"params": model[0].parameters(), "lr": 0.1},
        {"params": model[1].parameters(), "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=0.01, weight_decay=0.3, betas=(0.8, 0.9))
    found = leadline.trace(
        model, torch.randn(3, 4), loss=lambda y: y.square().mean(), optimizer=optimizer
    ).optimizer
    assert (found.name, found.steps) == ("AdamW", 0)
    assert [(group.lr, group.weight_decay) for group in found.groups] == [(0.1, 0.3), (0.01, 0.0)]
    assert found.groups[0].parameters == ("0.weight", "0.bias")
    assert found.groups[0].options["betas"] == [0.8, 0.9]
