"""Claims about weight decay and scale, each with its measured value; and the reading must say the same of each."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import leadline

WIDTH = 32
EXACT = 1e-13  # double precision, a few ops


@pytest.fixture(autouse=True)
def in_double_precision():
    torch.manual_seed(0)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


def change(before: Tensor, after: Tensor) -> float:
    return ((after - before).norm() / before.norm()).item()


def mlp(*, bias: bool) -> nn.Sequential:
    net = nn.Sequential(
        nn.Linear(WIDTH, WIDTH, bias=bias),
        nn.ReLU(),
        nn.Linear(WIDTH, WIDTH, bias=bias),
        nn.ReLU(),
        nn.Linear(WIDTH, 4),
    )
    for each in net.parameters():
        nn.init.normal_(each, std=WIDTH**-0.5)
    if not bias:
        net[4].bias = None
    return net


def scaled(net: nn.Module, factor: float, *names: str) -> Callable[[Tensor], Tensor]:
    parameters = {name: each * (factor if name in names else 1.0) for name, each in net.named_parameters()}
    return lambda x: torch.func.functional_call(net, parameters, (x,))


X = torch.randn(16, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def test_a_relu_network_without_biases_scales_with_its_input():
    net = mlp(bias=False)
    assert change(3.7 * net(X), net(3.7 * X)) < EXACT


def test_with_biases_it_does_not():
    net = mlp(bias=True)
    assert change(3.7 * net(X), net(3.7 * X)) > 0.1


def test_scaling_a_layer_scales_the_output_only_if_all_later_biases_are_scaled_too():
    net, a = mlp(bias=True), 3.0
    own = scaled(net, a, "0.weight", "0.bias")
    later = scaled(net, a, "0.weight", "0.bias", "2.bias", "4.bias")
    assert change(a * net(X), own(X)) > 0.1
    assert change(a * net(X), later(X)) < EXACT


def test_the_reading_finds_the_later_biases_as_well():
    """W1, b1 and the second bias against the last weight; the last bias is part of the output and cannot move."""
    found = leadline.symmetries(mlp(bias=True), X)
    assert found.dimension == 2
    assert {frozenset(each.exponents.items()) for each in found.generators} == {
        frozenset({("0.weight", 1), ("0.bias", 1), ("2.weight", -1)}),
        frozenset({("2.weight", 1), ("2.bias", 1), ("4.weight", -1)}),
    }


def norm_behind(weight: Tensor, eps: float) -> Tensor:
    return F.layer_norm(torch.relu(X @ weight), (WIDTH,), eps=eps)


def test_a_norm_takes_out_the_scale_of_the_weight_before_it():
    weight = torch.randn(WIDTH, WIDTH) / WIDTH**0.5
    assert change(norm_behind(weight, 0.0), norm_behind(1e-3 * weight, 0.0)) < EXACT


@pytest.mark.parametrize("a", [0.1, 0.03])
def test_with_eps_the_error_is_eps_over_twice_the_variance_that_is_left(a: float):
    weight, eps = torch.randn(WIDTH, WIDTH) / WIDTH**0.5, 1e-5
    variance = torch.relu(X @ weight).var(dim=-1, correction=0)
    predicted = (eps / (2 * a**2 * variance)).square().mean().sqrt().item()
    assert change(norm_behind(weight, eps), norm_behind(a * weight, eps)) == pytest.approx(predicted, rel=0.1)


def test_arbitrarily_small_norm_is_false_because_eps_takes_over():
    weight = torch.randn(WIDTH, WIDTH) / WIDTH**0.5
    assert change(norm_behind(weight, 1e-5), norm_behind(1e-3 * weight, 1e-5)) > 0.5


def test_the_gradient_of_a_scale_invariant_weight_is_orthogonal_to_it_and_falls_with_its_norm():
    weight = torch.randn(WIDTH, WIDTH) / WIDTH**0.5
    target = torch.randn(16, WIDTH)

    def gradient(at: Tensor) -> Tensor:
        leaf = at.clone().requires_grad_()
        return torch.autograd.grad((norm_behind(leaf, 0.0) * target).sum(), leaf)[0]

    g = gradient(weight)
    assert abs((g * weight).sum() / (g.norm() * weight.norm())) < EXACT
    assert (g.norm() * 0.1 / gradient(10 * weight).norm()).item() == pytest.approx(1.0, rel=1e-9)


def test_every_weight_before_a_norm_can_shrink_together_and_only_the_head_keeps_its_penalty():
    layers = [
        m for _ in range(3) for m in (nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH, eps=1e-12), nn.ReLU())
    ]
    net = nn.Sequential(*layers, nn.Linear(WIDTH, 3))
    found = leadline.symmetries(net, X)
    assert set(found.inert) == {name for name, _ in net.named_parameters() if not name.startswith(("7", "9"))}
    small = leadline.shrink(net, X, 1e-2)
    assert change(net(X), small(X)) < 1e-6
    before, after = (sum(p.norm() ** 2 for p in each[:7].parameters()) for each in (net, small))
    assert after < 0.02 * before


def norm(x: Tensor) -> Tensor:
    return F.layer_norm(x, (WIDTH,), eps=0.0)


PLACEMENTS = {
    "post": (lambda x, f: norm(x + f(x)), False),
    "output": (lambda x, f: x + norm(f(x)), True),
    "pre": (lambda x, f: x + f(norm(x)), False),
}


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_only_a_norm_at_the_branch_output_takes_out_the_scale_of_the_branch(placement: str):
    block, free = PLACEMENTS[placement]
    weight = torch.randn(WIDTH, WIDTH) / WIDTH**0.5
    one, other = (block(X, lambda x, a=a: a * (torch.relu(x) @ weight)) for a in (1.0, 0.1))
    assert (change(one, other) < EXACT) == free
    assert free or change(one, other) > 0.1


def test_batch_norm_is_a_norm_in_training_and_an_affine_map_in_evaluation():
    net = nn.Sequential(
        nn.Linear(WIDTH, WIDTH, bias=False), nn.BatchNorm1d(WIDTH, eps=1e-12), nn.Linear(WIDTH, 3)
    )
    for _ in range(50):
        net(X + 0.1 * torch.randn_like(X))
    tiny = scaled(net, 1e-2, "0.weight")
    assert change(net.train()(X), tiny(X)) < 1e-6
    assert "0.weight" in leadline.symmetries(net, X).invariant
    assert change(net.eval()(X), tiny(X)) > 0.3
    assert leadline.symmetries(net, X).invariant == ()


class PreNorm(nn.Module):
    """Embedding, pre-norm blocks, a final norm and a head."""

    def __init__(self, *, final: bool = True, blocks: int = 3) -> None:
        super().__init__()
        self.embed = nn.Linear(WIDTH, WIDTH)
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH, eps=1e-12) for _ in range(blocks))
        self.up = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(blocks))
        self.down = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(blocks))
        self.final = nn.LayerNorm(WIDTH, eps=1e-12) if final else nn.Identity()
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        for norm, up, down in zip(self.norms, self.up, self.down, strict=True):
            x = x + down(F.gelu(up(norm(x))))
        return self.head(self.final(x))


def test_residuals_do_not_remove_the_joint_symmetry_of_a_pre_norm_network_with_a_final_norm():
    net = PreNorm()
    writers = [name for name, _ in net.named_parameters() if name.startswith(("embed", "down"))]
    assert (
        change(net(X), scaled(net, 1e-3, *writers)(X)) < 1e-5
    )  # eps, 1e-12, over what is left of the variance
    assert change(net(X), scaled(net, 1e-3, "down.1.weight", "down.1.bias")(X)) > 0.1
    found = leadline.symmetries(net, X)
    assert set(found.inert) == set(writers)
    assert dict.fromkeys(writers, 1) in [each.exponents for each in found.generators]


def test_without_the_final_norm_it_is_gone():
    assert leadline.symmetries(PreNorm(final=False), X).inert == ()


def test_a_verification_is_its_drift_as_a_number():
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    found = leadline.symmetries(model, torch.randn(5, 4)).verify()
    assert float(found) == found.drift
    assert found < 1e-8
    assert not found > 1e-8
    assert found <= 1e-8
