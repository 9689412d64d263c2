"""Regressions that models of other libraries have revealed."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import leadline
from leadline.records import Trace
from tests.support.zoo import energy

WIDTH, CLASSES = 8, 5


def codes(model: nn.Module, loss=F.cross_entropy) -> set[str]:
    torch.manual_seed(0)
    targets = torch.randint(0, CLASSES, (16,)) if loss is F.cross_entropy else None
    report = leadline.check(model, torch.randn(16, WIDTH), targets, loss)
    return {finding.code for finding in report.findings}


def traced(model: nn.Module, x: Tensor) -> Trace:
    torch.manual_seed(0)
    return leadline.trace(model, x, loss=energy, theory=False)


class Capped(nn.Linear):
    """Logits in a soft cap of this height."""

    cap = 30.0

    def forward(self, x: Tensor) -> Tensor:
        return self.cap * torch.tanh(super().forward(x) / self.cap)


def test_a_soft_cap_on_logits_is_no_squashing():
    assert "I309" not in codes(Capped(WIDTH, CLASSES))


def test_a_cap_that_is_as_low_as_the_squashing_function_is_one():
    low = Capped(WIDTH, CLASSES)
    low.cap = 1.0
    assert "I309" in codes(low)


class RunningMaximum(nn.Linear):
    """A maximum over time that starts as low as numbers go, as in attention without softmax."""

    def forward(self, x: Tensor) -> Tensor:
        x = super().forward(x)
        lowest = torch.zeros_like(x) - 1e38
        highest = torch.maximum(lowest, x)
        return x * torch.exp(x - highest) + torch.exp(lowest - highest)


class Explosive(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * 1e19 * 1e19 * 1e-19 * 1e-19


def test_a_constant_near_the_largest_number_is_no_overflow():
    assert "N703" not in codes(RunningMaximum(WIDTH, CLASSES))


def test_a_signal_near_the_largest_number_is_one():
    assert "N703" in codes(Explosive(WIDTH, CLASSES))


class Littered(nn.Linear):
    """Noise drawn into memory that held something else before."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * torch.empty_like(x[:, :CLASSES]).fill_(1.0)


def test_uninitialized_memory_is_a_gap_and_not_measured():
    trace = traced(Littered(WIDTH, CLASSES), torch.randn(4, WIDTH))
    (made,) = (op for op in trace.ops if op.name == "empty_like")
    value = trace.values[made.outputs[0]]
    assert value.forward is None
    assert "uninitialized" in value.unobserved


def test_a_set_on_a_module_keeps_its_order():
    model = nn.Linear(WIDTH, CLASSES)
    model.places = set(range(100))
    model.places -= set(range(100)) - {1, 64}
    before = list(model.places)
    assert before != list(
        model.places.copy()
    )  # a set that grew and shrank has a different order than its copy
    traced(model, torch.randn(4, WIDTH))
    assert list(model.places) == before


class EveryLayerReadsTheFirst(nn.Module):
    """Branches that end in zeros, and a skip from the embedding to every layer: there is no narrow point."""

    def __init__(self, layers: int = 8) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, CLASSES)
        self.inner = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(layers))
        self.outer = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(layers))
        for each in self.outer:
            nn.init.zeros_(each.weight)

    def forward(self, x: Tensor) -> Tensor:
        start = x = self.first(x)
        for inner, outer in zip(self.inner, self.outer, strict=True):
            x = 0.9 * x + 0.1 * start
            x = x + outer(inner(x).relu())
        return self.head(x)


class ZeroInTheMiddle(nn.Sequential):
    def __init__(self) -> None:
        layers = [nn.Linear(WIDTH, WIDTH) for _ in range(3)]
        nn.init.zeros_(layers[1].weight)
        super().__init__(
            layers[0], nn.Tanh(), layers[1], nn.Tanh(), layers[2], nn.Tanh(), nn.Linear(WIDTH, CLASSES)
        )


def test_zeros_that_the_gradient_is_led_around_are_let_pass():
    assert "I304" not in codes(EveryLayerReadsTheFirst())


def test_zeros_on_the_only_way_are_not():
    assert "I304" in codes(ZeroInTheMiddle())


class Gated(nn.Module):
    """A branch whose gate reads only its bias."""

    def __init__(self, bias: float) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, CLASSES)
        self.gate, self.up = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        nn.init.zeros_(self.gate.weight)
        nn.init.constant_(self.gate.bias, bias)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        return self.head(x + F.silu(self.gate(x)) * self.up(x))


def test_a_gate_that_starts_at_zero_is_not_dead():
    assert "F104" not in codes(Gated(0.0))


def test_a_gate_that_is_shut_for_good_is():
    assert "F104" in codes(Gated(-200.0))


class ScaledInPlace(nn.Linear):
    """`linear` of a batch of sequences returns a view of what its kernel made; that is then scaled in place."""

    def forward(self, x: Tensor) -> Tensor:
        q = super().forward(x)
        q *= 0.25
        return q


def test_a_product_in_place_of_what_a_kernel_returned_as_a_view_is_a_scale():
    trace = traced(ScaledInPlace(WIDTH, WIDTH), torch.randn(2, 3, WIDTH))
    assert [(op.name, op.kind) for op in trace.ops][:2] == [("linear", "weight"), ("mul", "scale")]
    assert all(op.kind is not None for op in trace.ops)


class ActorCritic(nn.Module):
    """Two towers over one observation; they meet in the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.actor = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, CLASSES))
        self.critic = nn.Sequential(nn.Linear(WIDTH, 1))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.actor(x), self.critic(x)


def both(output: tuple[Tensor, Tensor]) -> Tensor:
    return output[0].square().mean() + output[1].square().mean()


def test_where_towers_meet_in_the_loss_only_the_longer_one_is_the_depth_axis():
    torch.manual_seed(0)
    report = leadline.check(ActorCritic(), torch.randn(16, WIDTH), loss=both)
    assert report.verdict != "undecided"
    assert [block.name for block in report.profile.blocks] == ["actor.0", "actor.2"]
    assert all(block.bypassed for block in report.profile.blocks)


@pytest.mark.parametrize("name", ["grouped_mm", "weight_norm", "outer", "diff", "linalg_solve_triangular"])
def test_ops_met_in_the_zoo_are_in_the_table(name):
    from leadline.ops.table import find_op

    assert find_op(name) is not None
