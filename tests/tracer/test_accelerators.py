"""How often the host waits for an accelerator, counted on a stand-in for one."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import leadline
from leadline.tracer.restore import take_snapshot
from tests.support.accelerator import Accelerated, on_accelerator


def network() -> tuple[nn.Module, Accelerated]:
    torch.manual_seed(0)
    layers = [layer for _ in range(4) for layer in (nn.Linear(8, 8), nn.LayerNorm(8), nn.ReLU())]
    return on_accelerator(nn.Sequential(*layers, nn.Linear(8, 3))), Accelerated(torch.randn(16, 8))


@pytest.fixture(autouse=True)
def no_waits_yet() -> None:
    Accelerated.waits.clear()


def mean_square(output: torch.Tensor) -> torch.Tensor:
    return output.square().mean()


def test_the_stand_in_counts_what_makes_the_host_wait():
    x = Accelerated(torch.randn(3))
    float(x.sum())
    x.sum().item()
    x.cpu()
    assert Accelerated.waits.total() == 3


def test_one_traced_pass_waits_for_the_device_once():
    model, x = network()
    trace = leadline.trace(model, x, loss=mean_square, theory=False)
    assert trace.device == "cuda:0"
    assert all(value.forward is not None for value in trace.values if value.source == "input")
    assert trace.loss is not None
    assert Accelerated.waits.total() == 1


class WritesItsWeights(nn.Module):
    """Changes a weight in each pass, which is put back."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output = self.inner(x)
        with torch.no_grad():
            self.inner[0].weight.mul_(2)
        return output


def test_what_a_pass_writes_is_restored_without_further_waits():
    inner, x = network()
    model = WritesItsWeights(inner)
    before = model.inner[0].weight.inner.clone()
    version = model.inner[0].weight._version
    leadline.trace(model, x, loss=mean_square, theory=False)
    assert torch.equal(model.inner[0].weight.inner, before)
    assert model.inner[0].weight._version == version
    assert Accelerated.waits.total() == 1


def test_a_snapshot_inside_another_compares_all_tensors_in_one_wait():
    model, x = network()
    case = leadline.Case(model, x, loss=mean_square)
    outer = take_snapshot(case)
    with torch.no_grad():
        model[0].weight.mul_(2)
    inner = take_snapshot(case, outer)
    assert Accelerated.waits.total() == 1
    copies = [inner.values_of(each) is outer.values_of(each) for each in model.parameters()]
    assert copies == [False] + [True] * (len(copies) - 1)


def test_a_trace_measures_the_same_on_the_stand_in_as_on_the_cpu():
    model, x = network()
    there = leadline.trace(model, x, loss=mean_square, theory=False)
    for module in model.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            setattr(module, name, nn.Parameter(parameter.inner))
    here = leadline.trace(model, x.inner, loss=mean_square, theory=False)
    assert [op.name for op in there.ops] == [op.name for op in here.ops]
    for one, other in zip(there.values, here.values, strict=True):
        if one.forward is not None and other.forward is not None:
            assert one.forward.ms == pytest.approx(other.forward.ms, rel=1e-5)
