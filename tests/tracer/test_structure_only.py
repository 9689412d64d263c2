"""A structure-only trace has the same ops and blocks, no statistics and no backward pass."""

from __future__ import annotations

import queue

import torch
from torch import nn

from leadline import Case
from leadline.nn import MLP
from leadline.readings.structure import read_structure
from leadline.tracer.trace import trace, trace_structure


def case() -> Case:
    torch.manual_seed(0)
    model = MLP(8, 16, 4, 4)
    return Case(model, torch.randn(8, 8), torch.randint(4, (8,)), nn.functional.cross_entropy)


def test_the_ops_and_blocks_are_those_of_the_whole_trace():
    given = case()
    whole, light = trace(given.model, given.inputs, given.targets, given.loss), trace_structure(given)
    assert light.ops == whole.ops
    assert light.modules == whole.modules
    assert [(value.shape, value.source, value.op) for value in light.values] == [
        (value.shape, value.source, value.op) for value in whole.values
    ]
    assert [block.name for block in read_structure(light).blocks] == [
        block.name for block in read_structure(whole).blocks
    ]


def test_nothing_is_measured_and_this_is_reported():
    light = trace_structure(case())
    assert light.loss is None
    made = [value for value in light.values if value.op is not None and value.floating]
    assert all(value.forward is None and value.backward is None for value in made)
    assert all("structure" in value.unobserved for value in made)


def test_no_backward_pass_runs():
    given = case()
    passed = queue.SimpleQueue()  # what a loss writes to a list is restored
    hooked = replace_loss(given, lambda y, t: _hooked(nn.functional.cross_entropy(y, t), passed))
    trace_structure(hooked)
    assert passed.empty()
    trace(hooked.model, hooked.inputs, hooked.targets, hooked.loss)
    assert not passed.empty()


def replace_loss(given: Case, loss) -> Case:
    return Case(given.model, given.inputs, given.targets, loss)


def _hooked(loss, passed):
    loss.register_hook(passed.put)
    return loss
