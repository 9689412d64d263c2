"""What is read of each weight layer: its gain, its place in a branch, its role, and which layers are copies."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import Tensor, nn

import leadline
from leadline.readings.profile import read_profile
from leadline.records import ModelFacts, Weight


def facts(model: nn.Module, inputs: Tensor) -> ModelFacts:
    recording = leadline.trace(model, inputs, loss=lambda output: output.square().mean())
    read = read_profile(recording)[0].facts
    assert read is not None
    return read


def weights(model: nn.Module, width: int = 16) -> dict[str, Weight]:
    torch.manual_seed(0)
    return {each.name: each for each in facts(model, torch.randn(8, width)).weights}


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(16, 32), nn.Linear(32, 16, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.second(self.first(x).relu())


def test_the_gain_of_a_layer_is_its_fan_in_times_the_mean_square_of_its_entries():
    layer = nn.Linear(16, 48)
    with torch.no_grad():
        layer.weight.copy_(torch.randn(48, 16) * 0.5)
    read = weights(nn.Sequential(layer))["0.weight"]
    assert (read.fan_in, read.fan_out) == (16, 48)
    assert read.variance == pytest.approx(16 * layer.weight.square().mean().item(), rel=1e-4)


def test_the_layers_of_a_branch_are_known_with_their_activation_and_bias_and_which_is_last():
    read = weights(nn.Sequential(nn.Linear(16, 16), Residual(), Residual(), nn.Linear(16, 4)))
    first, second = read["1.first.weight"], read["1.second.weight"]
    assert (first.residual, first.last, first.activation, first.bias) == (True, False, "relu", "1.first.bias")
    assert (second.residual, second.last, second.activation, second.bias) == (True, True, "", "")
    assert not read["3.weight"].residual


def test_the_norm_behind_a_layer_is_known():
    read = weights(nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4)))
    assert [each.norm for each in read.values()] == ["batch_norm", ""]


@pytest.mark.parametrize(
    ("shape", "deviation", "constant"),
    [
        ((4, 4), 0.0, True),
        ((3, 5), 0.0, False),
        ((4, 4), math.sqrt(9e-4), True),
        ((4, 4), math.sqrt(1.1e-3), False),
    ],
    ids=["equal entries", "too few entries", "hardly different entries", "different entries"],
)
def test_a_matrix_is_constant_if_nearly_all_of_its_power_is_in_its_mean(
    shape: tuple[int, int], deviation: float, constant: bool
):
    layer = nn.Linear(shape[1], shape[0])
    signs = torch.tensor([1.0, -1.0]).repeat(8)[: layer.weight.numel()].reshape(shape)
    with torch.no_grad():
        layer.weight.copy_(1 + deviation * signs)
    model = nn.Sequential(layer, nn.Tanh(), nn.Linear(shape[0], 2))
    assert weights(model, width=shape[1])["0.weight"].constant == constant


@pytest.mark.parametrize(("copies", "shown"), [(2, [0, 1]), (8, [*range(8)]), (9, [*range(7), 8])])
def test_copies_of_a_layer_are_counted_and_the_first_and_last_of_them_named(copies: int, shown: list[int]):
    torch.manual_seed(0)
    layer = nn.Linear(16, 16)
    model = nn.Sequential(*(copy.deepcopy(layer) for _ in range(copies)), nn.Linear(16, 16))
    (clones,) = facts(model, torch.randn(8, 16)).clones
    assert (clones.count, clones.names) == (copies, tuple(f"{index}.weight" for index in shown))
    assert clones.layers == (0, copies - 1)


def test_a_small_or_constant_or_frozen_matrix_is_no_copy_of_another():
    torch.manual_seed(0)
    for layer, frozen in ((nn.Linear(16, 16), True), (nn.Linear(3, 3), False)):
        copies = nn.Sequential(layer, copy.deepcopy(layer)).requires_grad_(not frozen)
        model = nn.Sequential(copies, nn.Linear(layer.out_features, 2))
        assert facts(model, torch.randn(8, layer.in_features)).clones == ()


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(16, 16) for _ in range(3))
        self.shared = nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        heads = [
            layer(x).unflatten(-1, (2, 8)).transpose(1, 2) for layer in (self.query, self.key, self.value)
        ]
        x = nn.functional.scaled_dot_product_attention(*heads).transpose(1, 2).flatten(-2)
        both = self.shared(x).unsqueeze(1)
        return nn.functional.scaled_dot_product_attention(both, both, both).squeeze(1)


def test_a_projection_has_the_role_that_attention_gives_it_unless_it_has_several():
    torch.manual_seed(0)
    read = {each.name: each.role for each in facts(Attention(), torch.randn(4, 6, 16)).weights}
    assert read == {
        "query.weight": "query",
        "key.weight": "key",
        "value.weight": "value",
        "shared.weight": "",
    }
