"""Compiled models: the compiled code is left alone, and samples repeat the pass uncompiled."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounter

import leadline
from leadline.monitor.sampler import NOT_CALLED
from tests.support.watched_training import SEED


def stack() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Dropout(0.5), nn.Linear(6, 2))


def train(model: nn.Module, own: nn.Module, **watch) -> tuple[list[Tensor], leadline.Watch | None]:
    x = torch.ones(5, 6)
    optimizer = torch.optim.SGD(own.parameters(), lr=0.1)
    w = leadline.watch(model, optimizer, **watch) if watch else None
    torch.manual_seed(SEED)
    for _ in range(4):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    if w is not None:
        w.close()
    return [each.detach().clone() for each in own.parameters()], w


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def in_place(own: nn.Module, backend) -> nn.Module:
    own.compile(backend=backend)
    return own


WAYS = {"wrapped": lambda own, backend: torch.compile(own, backend=backend), "in place": in_place}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("choices", [{"every": 2}, {"budget": 1.0}], ids=["every second step", "by budget"])
def test_a_watched_compiled_model_is_compiled_as_often_and_trains_the_same(choices, way):
    found = []
    for watch in ({}, choices):
        counter, own = CompileCounter(), stack()
        weights, w = train(WAYS[way](own, counter), own, **watch)
        found.append((counter.frame_count, counter.op_count, weights))
        torch._dynamo.reset()
    assert w.trouble == ""
    assert any(each.kind == "sample" for each in w.events)
    assert found[0][:2] == found[1][:2]
    assert all(torch.equal(a, b) for a, b in zip(found[0][2], found[1][2], strict=True))


@pytest.mark.parametrize("way", WAYS)
def test_the_repeated_pass_has_the_gradients_of_the_compiled_one(way):
    own = stack()
    own[2].p = 0.0
    twin = copy.deepcopy(own)
    _, compiled = train(WAYS[way](own, "eager"), own, every=1)
    _, plain = train(twin, twin, every=1)
    for name in ("forward_ms", "backward_ms"):
        ours, theirs = (w.history.recent(name).rows for w in (compiled, plain))
        assert len(ours) == len(theirs) == 4
        for mine, its in zip(ours, theirs, strict=True):
            assert list(mine)[:3] == pytest.approx(list(its)[:3], rel=1e-5)


def test_a_model_compiled_in_place_is_left_as_it_was():
    own = in_place(stack(), "eager")
    compiled = own._compiled_call_impl
    optimizer = torch.optim.SGD(own.parameters(), lr=0.1)
    with leadline.watch(own, optimizer, every=1):
        assert own._compiled_call_impl is not compiled
        with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
            own(torch.ones(2, 3))
    assert own._compiled_call_impl is compiled


@pytest.mark.filterwarnings(
    "ignore:.*script_method:DeprecationWarning", "ignore::UserWarning"
)  # PyTorch's own
@pytest.mark.parametrize("choices", [{"every": 2}, {"budget": 1e-6}], ids=["every second step", "by budget"])
def test_a_compiled_optimizer_step_is_compiled_as_often_and_trains_the_same(choices):
    found = []
    for watch in ({}, choices):
        counter, model = CompileCounter(), stack()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        step = torch.compile(optimizer.step, backend=counter)
        w = leadline.watch(model, optimizer, **watch) if watch else None
        torch.manual_seed(SEED)
        for _ in range(4):
            optimizer.zero_grad()
            model(torch.ones(5, 6)).square().mean().backward()
            step()
        found.append(
            (counter.frame_count, counter.op_count, [each.detach().clone() for each in model.parameters()])
        )
        torch._dynamo.reset()
    w.close()
    assert (w.trouble, w.step) == ("", 4)
    assert found[0][0] > 0
    assert found[0][:2] == found[1][:2]
    assert all(torch.equal(a, b) for a, b in zip(found[0][2], found[1][2], strict=True))


@pytest.mark.parametrize(
    "way", ["the model", pytest.param("a function that calls it", marks=pytest.mark.slow)]
)
def test_a_watched_model_compiled_outside_the_watch_has_no_graph_break_and_reports_it(way):
    """Whoever watches the plain model and calls a compiled one compiles our hooks too: they compile to nothing."""

    def run(**watch):
        torch._dynamo.reset()
        own, counter = stack(), CompileCounter()
        optimizer = torch.optim.SGD(own.parameters(), lr=0.1)
        w = leadline.watch(own, optimizer, **watch) if watch else None
        called = torch.compile(own if way == "the model" else lambda x: own(x), backend=counter)
        torch.manual_seed(SEED)
        for _ in range(5):
            called(torch.ones(5, 6)).square().mean().backward()
            optimizer.step()
        if w is not None:
            w.close()
        return [each.detach() for each in own.parameters()], counter.op_count / counter.frame_count, w

    plain, ops, _ = run()
    watched, ops_watched, w = run(every=1)
    assert ops == ops_watched, "one whole graph each"
    assert all(map(torch.equal, plain, watched))
    assert w.trouble == ""
    assert [each.message for each in w.events] == [NOT_CALLED]
