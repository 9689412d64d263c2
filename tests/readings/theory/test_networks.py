"""Whole networks: theory agrees with measurement, forward and backward, within stated bounds."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import leadline
from benchmarks.verdicts.case_builder import build
from benchmarks.verdicts.problem_sample import generate
from leadline.readings.theory.prediction import first_floating, predict, predict_moments
from leadline.records import Trace
from leadline.tracer.trace import trace

WIDTH = 128


def errors(seen: Trace) -> tuple[list[float], list[float]]:
    """|ln(predicted / measured)| of all ops, forward and backward."""
    ahead, back = [], []
    for op in seen.ops:
        value = first_floating(seen, op)
        if value is None:
            continue
        stats, grads = seen.values[value].forward, seen.values[value].backward
        if op.forward_ms_predicted and stats is not None and stats.ms > 0:
            ahead.append(abs(math.log(op.forward_ms_predicted / stats.ms)))
        if op.backward_ms_predicted and grads is not None and grads.ms > 0:
            back.append(abs(math.log(op.backward_ms_predicted / grads.ms)))
    return ahead, back


def middle(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]


def plain(activation: Callable[[], nn.Module]) -> nn.Module:
    layers: list[nn.Module] = []
    for _ in range(8):
        layers += [nn.Linear(WIDTH, WIDTH), activation()]
    return nn.Sequential(*layers, nn.Linear(WIDTH, 10))


class Residual(nn.Module):
    def __init__(self, norm: str) -> None:
        super().__init__()
        self.norm, self.layer_norm = norm, nn.LayerNorm(WIDTH)
        self.inner, self.outer = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        read = self.layer_norm(x) if self.norm == "pre" else x
        made = x + self.outer(F.gelu(self.inner(read)))
        return self.layer_norm(made) if self.norm == "post" else made


def encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(WIDTH, 4, 2 * WIDTH, batch_first=True, norm_first=True)
    return nn.Sequential(nn.TransformerEncoder(layer, 3, enable_nested_tensor=False), nn.Linear(WIDTH, 10))


def convolutional() -> nn.Module:
    def stage(inside: int, outside: int) -> list[nn.Module]:
        return [nn.Conv2d(inside, outside, 3, stride=2, padding=1), nn.BatchNorm2d(outside), nn.ReLU()]

    return nn.Sequential(
        *stage(3, 32), *stage(32, 64), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)
    )


def vectors() -> Tensor:
    return torch.randn(64, WIDTH)


NETWORKS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = {
    "relu": (lambda: plain(nn.ReLU), vectors),
    "gelu": (lambda: plain(nn.GELU), vectors),
    "tanh": (lambda: plain(nn.Tanh), vectors),
    "silu": (lambda: plain(nn.SiLU), vectors),
    "residual": (lambda: nn.Sequential(*(Residual("none") for _ in range(6)), nn.Linear(WIDTH, 10)), vectors),
    "pre-norm": (lambda: nn.Sequential(*(Residual("pre") for _ in range(6)), nn.Linear(WIDTH, 10)), vectors),
    "post-norm": (
        lambda: nn.Sequential(*(Residual("post") for _ in range(6)), nn.Linear(WIDTH, 10)),
        vectors,
    ),
    "transformer": (encoder, lambda: torch.randn(8, 16, WIDTH)),
    "convolutional": (convolutional, lambda: torch.randn(16, 3, 32, 32)),
}


@pytest.fixture(scope="module", params=NETWORKS)
def seen(request: pytest.FixtureRequest) -> Trace:
    torch.manual_seed(0)
    build, batch = NETWORKS[request.param]
    inputs = batch()

    def loss(out: Tensor) -> Tensor:
        rows = out.reshape(-1, out.shape[-1])
        return F.cross_entropy(rows, torch.arange(len(rows)) % 10)

    return leadline.trace(build(), inputs, loss=loss)


def test_half_of_all_forward_predictions_are_within_eight_percent(seen: Trace):
    assert middle(errors(seen)[0]) < math.log(1.08)


def test_half_of_all_backward_predictions_are_within_twenty_percent(seen: Trace):
    assert middle(errors(seen)[1]) < math.log(1.2)


def test_every_op_that_carries_a_signal_is_predicted(seen: Trace):
    assert predict(seen).forward.refusals == {}


def test_prediction_continues_after_an_op_without_a_rule_and_reports_it():
    class Strange(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

        def forward(self, x: Tensor) -> Tensor:
            made = self.first(x)
            return self.last(torch.special.bessel_j0(made))

    found = trace(Strange(), vectors(), loss=lambda out: out.square().mean())
    said = predict(found)
    strange = next(op for op in found.ops if "bessel" in op.name)
    assert strange.index in said.forward.refusals
    assert strange.index in said.forward.anchors
    last = predict_moments(found).ops[strange.index + 1]
    stats = found.values[last.outputs[0]].forward
    assert last.forward_ms_predicted == pytest.approx(stats.ms, rel=0.1)


def test_prediction_does_not_need_any_measured_value_of_the_pass():
    """As in a trace without weights: parameters and inputs have moments, nothing else has."""
    import msgspec

    torch.manual_seed(0)
    found = trace(plain(nn.ReLU), vectors(), loss=lambda out: out.square().mean())
    blind = msgspec.structs.replace(
        found,
        values=tuple(
            value
            if value.op is None
            else msgspec.structs.replace(value, forward=None, backward=None, common_ms=None)
            for value in found.values
        ),
    )
    guessed = predict_moments(blind)
    for op, measured in zip(guessed.ops, found.ops, strict=True):
        stats = found.values[measured.outputs[0]].forward
        if op.forward_ms_predicted is not None:
            assert op.forward_ms_predicted == pytest.approx(stats.ms, rel=0.5)
    assert sum(op.forward_ms_predicted is not None for op in guessed.ops) >= len(found.ops) - 1


def test_a_large_mean_square_is_not_taken_for_a_mask():
    class Norm(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)

    found = leadline.trace(
        Norm(), 200 * torch.randn(64, 256, requires_grad=True), loss=lambda y: y.square().mean()
    )
    norm = next(op for op in found.ops if op.name == "mul")
    assert norm.forward_ms_predicted == pytest.approx(1.0, rel=0.02)


def test_no_second_moment_is_predicted_to_be_negative_where_attention_has_collapsed():
    problem = next(each for each in generate() if each.scheme == "unscaled" and each.family == "lm")
    case = build(problem)
    found = leadline.trace(case.model, case.inputs, case.targets, case.loss)
    predicted = [op.backward_ms_predicted for op in found.ops if op.backward_ms_predicted is not None]
    assert len(predicted) > 5
    assert min(predicted) >= 0
