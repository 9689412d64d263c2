"""What a fix proposes fits the model: the kind of norm, and the layers that are registered."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from leadline import Case
from leadline.checks._diagnosis import check_case
from leadline.fixes._engine.verify import make_context
from leadline.fixes.balance import balance
from leadline.fixes.insert_norm import insert_norm
from leadline.fixes.register_modules import register_modules
from tests.support.fix_examples import Hidden, case_of, vectors


def inserted(model: nn.Module, inputs: torch.Tensor) -> set[tuple[str, int]]:
    """Kind and width of the norms that the fix would insert."""
    case = Case(model, inputs, loss=lambda output: output.square().mean())
    plans = insert_norm.propose(make_context(case, check_case(case, rehearse=False)))
    edits = [edit for plan in plans for edit in plan.edits if edit.action == "norm"]
    return {(edit.options["kind"], edit.options["width"]) for edit in edits}


@pytest.mark.parametrize(("samples", "kind"), [(7, "GroupNorm"), (8, "BatchNorm2d")])
def test_convolutions_get_a_batch_norm_if_the_batch_has_enough_samples(samples: int, kind: str):
    torch.manual_seed(0)
    layers = [layer for _ in range(4) for layer in (nn.Conv2d(6, 6, 3, padding=1), nn.ReLU())]
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(6 * 5 * 5, 2))
    assert inserted(model, torch.randn(samples, 6, 5, 5)) == {(kind, 6)}


@pytest.mark.parametrize("shape", [(8, 12), (8, 3, 12)], ids=["samples", "sequences"])
def test_linear_layers_get_a_layer_norm_over_their_features(shape: tuple[int, ...]):
    torch.manual_seed(0)
    layers = [layer for _ in range(4) for layer in (nn.Linear(12, 12), nn.ReLU())]
    assert inserted(nn.Sequential(*layers, nn.Linear(12, 2)), torch.randn(shape)) == {("LayerNorm", 12)}


@pytest.mark.parametrize(("layers", "found"), [(2, False), (3, True)])
def test_norms_are_inserted_only_into_a_stack(layers: int, found: bool):
    torch.manual_seed(0)
    stack = [layer for _ in range(layers) for layer in (nn.Linear(12, 12), nn.ReLU())]
    assert bool(inserted(nn.Sequential(*stack, nn.Linear(12, 2)), torch.randn(8, 12))) == found


def test_only_containers_of_layers_that_are_hidden_are_registered():
    torch.manual_seed(0)
    model = Hidden()
    model.sizes, model.cache, model.heads = [1, 2], {}, [model.head]
    model.mixed = [nn.Linear(2, 2), "a name"]
    (plan,) = register_modules.propose(make_context(case_of(model, vectors())))
    assert [edit.options["name"] for edit in plan.edits] == ["layers"]


@pytest.mark.parametrize(("ratio", "factor"), [(4.0, 2.0), (16.0, 4.0), (64.0, 8.0)])
def test_two_layers_are_balanced_at_equal_norms(ratio: float, factor: float):
    """The norms of two layers of a ReLU network have a ratio; half of it, as a power, goes to each."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8, bias=False), nn.ReLU(), nn.Linear(8, 8, bias=False))
    with torch.no_grad():
        for layer, norm in ((model[0], 1.0), (model[2], ratio)):
            layer.weight.mul_(norm / layer.weight.norm())
    case = Case(model, torch.randn(16, 8), loss=lambda output: output.square().mean())
    (plan,) = balance.propose(make_context(case, check_case(case, rehearse=False)))
    factors = {edit.where: edit.options["factor"] for edit in plan.edits}
    assert factors == {"0.weight": factor, "2.weight": 1 / factor}
