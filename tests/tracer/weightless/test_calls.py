"""Remembered calls are the calls: a deep pass has at its last layer what it has at its first."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from leadline import Case
from leadline.records import Trace
from leadline.tracer.weightless import build
from leadline.tracer.weightless.build import build_without_weights, trace_without_weights

DEPTH = 4


class Block(nn.Module):
    """Views, splits, writes through views and in place, on tensors that the layers before have made."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 16)
        self.outer = nn.Linear(8, 8)

    def forward(self, x):
        a, b = self.inner(x).chunk(2, dim=-1)
        y = (torch.relu_(a.clone()) * b).view(*a.shape[:-1], 2, 4).transpose(-1, -2)
        flat = y.reshape(*a.shape)
        flat[..., :4].mul_(0.5)
        flat[..., 0] = 1.0
        low = flat.unsqueeze(-1).max(dim=-1).values
        return x + self.outer(low).to(x.dtype) + flat.detach()


def make() -> Case:
    model = nn.Sequential(*[Block() for _ in range(DEPTH)])
    return Case(model, torch.randn(2, 3, 8), loss=lambda y: y.square().mean())


def traced(monkeypatch: pytest.MonkeyPatch, *, remembering: bool) -> Trace:
    with monkeypatch.context() as patched:
        if not remembering:
            patched.setattr("leadline.tracer.weightless.kernels.CallCache._key", lambda *_: None)
        built = build_without_weights(make)
        return trace_without_weights(built, built.result)


def test_a_pass_with_remembered_calls_is_the_pass_without(monkeypatch):
    assert traced(monkeypatch, remembering=True) == traced(monkeypatch, remembering=False)


def test_every_layer_is_recorded_as_the_first(monkeypatch):
    seen = traced(monkeypatch, remembering=True)
    layers = [[op.name for op in seen.ops if op.module.startswith(f"{n}")] for n in range(DEPTH)]
    assert all(layer == layers[0] for layer in layers)


def test_a_write_through_a_view_of_a_remembered_call_is_a_new_value_of_its_base(monkeypatch):
    seen = traced(monkeypatch, remembering=True)
    writes = [op for op in seen.ops if op.name == "mul" and op.callable.endswith("mul_")]
    assert len(writes) == DEPTH
    assert all(len(op.outputs) == 2 for op in writes)


class Asking(nn.Module):
    """Notes which tensors ask for gradients."""

    def __init__(self, result, note) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
        self.result, self.note = result, note

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
            with torch.no_grad():
                self.note(self.result(x).requires_grad)
            self.note(self.result(x.detach()).requires_grad)
            self.note(self.result(x).requires_grad)
        return x


@pytest.mark.parametrize(
    "result", [torch.relu, torch.detach, torch.argmax, lambda x: x.view(-1), lambda x: x.chunk(2)[0]]
)
def test_tensors_require_gradients_where_those_of_the_real_model_do(result):
    expected, answers = [], []
    Asking(result, expected.append)(torch.randn(2, 4))
    built = build_without_weights(
        lambda: Case(Asking(result, answers.append), torch.randn(2, 4), loss=lambda y: y.sum())
    )
    trace_without_weights(built, built.result)
    assert answers == expected
    assert len(answers) == 9


def test_a_model_that_differentiates_in_its_forward_pass_gets_a_graph(monkeypatch):
    passes = []
    monkeypatch.setattr(
        build,
        "trace_without_values",
        lambda case, context, run=build.trace_without_values: (
            passes.append(context.mode.calls.build_graph) or run(case, context)
        ),
    )

    class Penalty(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x):
            y = self.layer(x).sum()
            return y + torch.autograd.grad(y, self.layer.weight, create_graph=True)[0].square().sum()

    built = build_without_weights(lambda: Case(Penalty(), torch.randn(2, 4)))
    trace_without_weights(built, built.result)
    assert passes == [False, True]
