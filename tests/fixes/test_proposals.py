"""What a fix proposes fits the model: the kind of norm, and the layers that are registered."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import leadline
from leadline import Case
from leadline.checks._diagnosis import check_case
from leadline.fixes._engine.edits import EditSession, apply_edits
from leadline.fixes._engine.init_edits import fresh_edits
from leadline.fixes._engine.lookup import QUERIES_AND_KEYS, VALUES, packing_of
from leadline.fixes._engine.verify import make_context
from leadline.fixes.balance import balance
from leadline.fixes.deep_norm import deep_norm
from leadline.fixes.insert_norm import insert_norm
from leadline.fixes.learning_rate import learning_rate
from leadline.fixes.register_modules import register_modules
from leadline.fixes.swap_activation import swap_activation
from tests.support.fix_examples import WIDTH, Hidden, case_of, residual, vectors


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


def test_queries_keys_and_values_are_all_parts_of_a_packed_projection():
    model = nn.MultiheadAttention(8, 2)
    seen = leadline.trace(model, tuple(torch.randn(3, 4, 8) for _ in range(3)), loss=lambda y: y[0].sum())
    parts = []
    for which in (QUERIES_AND_KEYS, VALUES):
        packing = packing_of(seen, "in_proj_weight", which)
        assert packing is not None
        parts += range(packing.first, packing.last + 1)
    assert parts == list(range(packing.parts))


def test_units_of_relu_that_are_dead_are_replaced_by_gelu():
    torch.manual_seed(0)
    layers = [layer for _ in range(4) for layer in (nn.Linear(12, 12), nn.ReLU())]
    model = nn.Sequential(*layers, nn.Linear(12, 2))
    with torch.no_grad():
        for layer in model[:-1:2]:
            layer.bias[:9] = -50.0
    case = Case(model, torch.randn(32, 12), loss=lambda output: output.square().mean())
    titles = [
        plan.title for plan in swap_activation.propose(make_context(case, check_case(case, rehearse=False)))
    ]
    assert titles == ["4 relu replaced by gelu, weights drawn for it"]


@pytest.mark.parametrize("rate", [1e-7, 10.0])
def test_the_promise_of_a_rate_is_a_probability_and_the_likeliest_comes_first(rate: float):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(12, 12), nn.ReLU(), nn.Linear(12, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    case = Case(model, torch.randn(32, 12), torch.randn(32, 2), nn.functional.mse_loss, optimizer)
    promises = [
        plan.promise for plan in learning_rate.propose(make_context(case, check_case(case, rehearse=False)))
    ]
    assert promises
    assert promises == sorted(promises, reverse=True)
    assert all(0 < each < 1 for each in promises)


def drawn_anew(model: nn.Module, inputs: torch.Tensor) -> None:
    case = Case(model, inputs, loss=lambda output: output.square().mean())
    apply_edits(EditSession(model=model), fresh_edits(make_context(case, check_case(case, rehearse=False))))


def test_matrices_without_an_activation_before_them_keep_the_size_of_the_signal_when_they_are_drawn_anew():
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Linear(WIDTH, WIDTH) for _ in range(4)], nn.Linear(WIDTH, 2))
    drawn_anew(model, vectors())
    assert float(model[:4](vectors()).detach().norm()) == pytest.approx(float(vectors().norm()), rel=1e-4)


@pytest.mark.parametrize("depth", [4, 12])
def test_branches_drawn_anew_add_as_much_together_as_the_stream_has_however_many_they_are(depth: int):
    torch.manual_seed(0)
    model = residual(depth)
    drawn_anew(model, vectors())
    x, added = vectors(), 0.0
    for block in model[:depth]:
        y = block(x).detach()
        added += float((y - x).square().mean() / x.square().mean())
        x = y
    assert added == pytest.approx(1.0, rel=0.2)


class PostNormed(nn.Module):
    """LN(x + W2 relu(W1 x))."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x + self.outer(self.inner(x).relu()))


@pytest.mark.parametrize("before", [0, 1])
def test_deep_norm_scales_every_branch_also_that_of_a_first_layer(before: int):
    torch.manual_seed(0)
    stack = [PostNormed() for _ in range(4)]
    model = nn.Sequential(*[nn.Linear(WIDTH, WIDTH) for _ in range(before)], *stack, nn.Linear(WIDTH, 4))
    case = case_of(model, vectors())
    (plan,) = deep_norm.propose(make_context(case, check_case(case, rehearse=False)))
    hooked = {edit.where for edit in plan.edits if edit.action == "scale-output"}
    assert hooked == {f"{before + place}.outer" for place in range(4)}
