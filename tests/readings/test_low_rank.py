"""Low-rank terms beside frozen matrices are found by their ops, and a step on them is measured."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import leadline
from leadline import Report
from leadline.checks._select import find_check
from leadline.readings.low_rank import MAX_PATH


class Beside(nn.Module):
    """A frozen layer with a low-rank term, written in one of several ways."""

    def __init__(self, inputs: int, outputs: int, *, rank: int = 4, scale: float = 2.0, way: str = "layers"):
        super().__init__()
        self.base = nn.Linear(inputs, outputs).requires_grad_(requires_grad=False)
        self.way, self.scale = way, scale
        self.down = nn.Parameter(torch.randn(rank, inputs) / inputs**0.5)
        self.up = nn.Parameter(torch.zeros(outputs, rank))
        self.register_buffer("factor", torch.tensor(scale))
        if way == "learned":
            self.learned = nn.Parameter(torch.tensor(scale))

    def forward(self, x: Tensor) -> Tensor:
        match self.way:
            case "layers":
                return self.base(x) + F.linear(F.linear(F.dropout(x, 0.1), self.down), self.up) * self.scale
            case "products":
                return self.base(x) + self.scale * (x @ self.down.T @ self.up.T)
            case "buffer":
                return self.factor * F.linear(F.linear(x, self.down), self.up) + self.base(x)
            case "learned":
                return self.base(x) + self.learned * F.linear(F.linear(x, self.down), self.up)
            case "alpha":
                return torch.add(self.base(x), F.linear(F.linear(x, self.down), self.up), alpha=self.scale)
            case "two factors":
                return self.base(x) + F.linear(F.linear(x, self.down) * 4.0, self.up) / (4.0 / self.scale)
            case "merged":
                return F.linear(x, self.base.weight + self.scale * (self.up @ self.down), self.base.bias)
            case "of another signal":
                return self.base(x) + F.linear(F.linear(x.relu(), self.down), self.up)
            case "times zero":
                return self.base(x) + F.linear(F.linear(x, self.down), self.up) * 0.0
            case "merged in each row":
                return F.linear(x, self.base.weight + self.up.sum(0, keepdim=True) @ self.down)
            case "merged with a signal":
                return F.linear(x, self.base.weight + self.up @ (self.down.cos() * x.mean()))
            case "far from the sum":
                return self.base(x) + passed_on(F.linear(F.linear(x, self.down), self.up))
            case "far from the input":
                return self.base(x) + F.linear(F.linear(passed_on(x), self.down), self.up)
            case "far from the weight":
                return F.linear(x, self.base.weight + self.up @ passed_on(self.down))
        raise ValueError(self.way)


def passed_on(x: Tensor) -> Tensor:
    """The same numbers, after more ops than a path may have."""
    for _ in range(MAX_PATH):
        x = x.unsqueeze(0).squeeze(0)
    return x


class Adapter(nn.Module):
    """A bottleneck with an activation: no product of two matrices."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.base = nn.Linear(inputs, outputs).requires_grad_(requires_grad=False)
        self.down, self.up = nn.Linear(inputs, 4), nn.Linear(4, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.up(F.relu(self.down(x)))


def report_of(*layers: nn.Module, lr: float | None = None, make=torch.optim.AdamW) -> Report:
    torch.manual_seed(1)
    model = nn.Sequential(*layers, nn.ReLU(), nn.Linear(24, 3).requires_grad_(requires_grad=False))
    trained = [each for each in model.parameters() if each.requires_grad]
    optimizer = None if lr is None else make(trained, lr=lr)
    inputs, classes = torch.randn(32, 20), torch.randint(3, (32,))
    return leadline.check(model, inputs, classes, F.cross_entropy, optimizer, rehearse=False)


@pytest.mark.parametrize("way", ["layers", "products", "buffer", "learned", "alpha", "two factors", "merged"])
def test_a_low_rank_term_is_found_with_its_scale_however_it_is_written(way: str):
    torch.manual_seed(0)
    terms = report_of(Beside(20, 24, way=way)).profile.facts.low_rank
    assert [(each.base, each.down, each.up, each.rank) for each in terms] == [
        ("0.base.weight", "0.down", "0.up", 4)
    ]
    assert terms[0].scale == pytest.approx(2.0)


def test_adapters_trained_layers_and_residual_branches_are_no_low_rank_terms():
    trained = Beside(20, 24)
    trained.base.requires_grad_()
    for layer in (Adapter(20, 24), trained, nn.Linear(20, 24)):
        assert report_of(layer).profile.facts.low_rank == ()


@pytest.mark.parametrize(
    "way",
    [
        "of another signal", "times zero", "merged in each row", "merged with a signal", "far from the sum",
        "far from the input", "far from the weight",
    ],
)  # fmt: skip
def test_what_is_not_surely_the_product_of_two_matrices_beside_a_frozen_one_is_no_low_rank_term(way: str):
    torch.manual_seed(0)
    assert report_of(Beside(20, 24, way=way)).profile.facts.low_rank == ()


@pytest.mark.parametrize("way", ["layers", "merged"])
@pytest.mark.parametrize("make", [torch.optim.AdamW, torch.optim.SGD])
def test_the_measured_change_is_that_of_the_product_before_and_after_a_step(way: str, make):
    torch.manual_seed(0)
    layer = Beside(20, 24, way=way).train(mode=False)
    nn.init.normal_(layer.up, std=0.1)
    before = layer.up.detach() @ layer.down.detach()
    step = report_of(layer, lr=0.01, make=make).profile.update.low_rank[0]
    torch.manual_seed(1)
    head = nn.Linear(24, 3).requires_grad_(requires_grad=False)
    inputs, classes = torch.randn(32, 20), torch.randint(3, (32,))
    optimizer = make([layer.down, layer.up], lr=0.01)
    assert torch.equal(layer.up.detach() @ layer.down.detach(), before)  # the check restored both factors
    F.cross_entropy(head(layer(inputs).relu()), classes).backward()
    optimizer.step()
    change = 2.0 * (layer.up.detach() @ layer.down.detach() - before)
    assert step.change == pytest.approx(float(torch.linalg.matrix_norm(change, ord=2)), rel=0.02)
    assert step.base_size == pytest.approx(
        float(torch.linalg.matrix_norm(layer.base.weight, ord=2)), rel=0.05
    )


def power_of_rank(make: type[torch.optim.Optimizer], root: float, samples: int) -> float:
    """The power of the rank in the change of the outputs by one step at scale 4 / rank**root; mean of 20 seeds."""

    def change(rank: int, seed: int) -> float:
        generator = torch.Generator().manual_seed(seed)
        head, down = (torch.randn(shape, generator=generator) / 16 for shape in ((3, 64), (rank, 256)))
        up, scale = torch.zeros(64, rank, requires_grad=True), 4 / rank**root
        inputs = torch.randn(samples, 256, generator=generator)
        classes = torch.randint(3, (samples,), generator=generator)
        optimizer = make([down.requires_grad_(), up], lr=1e-4)
        F.cross_entropy(scale * (inputs @ down.T @ up.T) @ head.T, classes).backward()
        optimizer.step()
        return float((scale * (inputs @ down.T @ up.T)).detach().norm())

    powers = [math.log(change(64, seed) / change(4, seed)) / math.log(16) for seed in range(20)]
    return sum(powers) / len(powers)


@pytest.mark.parametrize("samples", [1, 64])
def test_at_a_fixed_alpha_over_the_rank_the_first_step_of_sgd_shrinks_with_the_rank(samples: int):
    assert -1.4 < power_of_rank(torch.optim.SGD, 1, samples) < -0.7


def test_which_scale_keeps_the_first_step_of_adam_depends_on_the_number_of_inputs():
    assert power_of_rank(torch.optim.Adam, 1, 1) == pytest.approx(0, abs=0.15)
    assert power_of_rank(torch.optim.Adam, 1, 64) == pytest.approx(-0.4, abs=0.15)
    assert power_of_rank(torch.optim.Adam, 0.5, 1) == pytest.approx(0.5, abs=0.15)
    assert power_of_rank(torch.optim.Adam, 0.5, 64) == pytest.approx(0.1, abs=0.15)


def codes_of(*, scale: float, lr: float) -> set[str]:
    torch.manual_seed(0)
    return {each.code for each in report_of(Beside(20, 24, scale=scale), lr=lr).findings}


def test_a_scale_that_overwrites_or_hides_the_frozen_matrix_is_named_and_a_usual_one_is_not():
    assert {"U532", "U533"} & codes_of(scale=2.0, lr=1e-3) == set()
    assert "U532" in codes_of(scale=400.0, lr=1e-2)
    assert "U533" in codes_of(scale=1e-3, lr=1e-4)


def test_the_findings_say_the_scale_that_would_be_within_the_limit():
    check = find_check("U532")
    (finding,) = check(check.sick)
    assert "2 to 0.3" in finding.action.replace("from ", "")
