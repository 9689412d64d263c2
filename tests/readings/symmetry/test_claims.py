"""What the reading says of networks whose symmetries are known. The claims S2-1 to S2-10 themselves are in the lab."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import leadline

WIDTH = 32


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


def test_the_reading_finds_the_later_biases_as_well():
    """W1, b1 and the second bias against the last weight; the last bias is part of the output and cannot move."""
    found = leadline.symmetries(mlp(bias=True), X)
    assert found.dimension == 2
    assert {frozenset(each.exponents.items()) for each in found.generators} == {
        frozenset({("0.weight", 1), ("0.bias", 1), ("2.weight", -1)}),
        frozenset({("2.weight", 1), ("2.bias", 1), ("4.weight", -1)}),
    }


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


def test_a_verification_compares_as_its_drift():
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    found = leadline.symmetries(model, torch.randn(5, 4)).verify()
    assert float(found) == found.drift
    assert found < 1e-8
    assert not found > 1e-8
    assert found <= 1e-8
