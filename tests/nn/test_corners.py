"""Blocks and optimisers where somebody uses them in a less usual way."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leadline.errors import InputError
from leadline.nn import MLP, EncoderDecoder, LanguageModel, Residual
from leadline.nn.clipping import StableAdamW, adaptive_clip_
from leadline.nn.hooks import NormedInput, Recentred, on_first
from leadline.nn.init import lsuv_
from leadline.nn.language import draw
from leadline.nn.lean import Remade, lean_feed_forward, lean_linear
from leadline.nn.mlp import PlainLayer
from leadline.nn.options import Options
from leadline.nn.qk_norm import qk_norm_
from leadline.nn.roles import role_weights
from leadline.nn.schedules import schedule


def test_parameters_without_a_gradient_are_neither_clipped_nor_moved():
    used, unused = (nn.Parameter(torch.ones(2, 2)) for _ in range(2))
    used.grad = torch.full((2, 2), 100.0)
    assert adaptive_clip_([used, unused], clip=0.01) == 1.0
    optimizer = StableAdamW([used, unused], lr=0.1)
    optimizer.step()
    assert torch.equal(unused, torch.ones(2, 2))
    assert not torch.equal(used, torch.ones(2, 2))


def test_a_closure_is_called_with_gradients_and_its_loss_returned():
    weight = nn.Parameter(torch.ones(3))
    optimizer = StableAdamW([weight], lr=0.1)

    def closure() -> Tensor:
        loss = weight.square().sum()
        loss.backward()
        return loss

    assert optimizer.step(closure) == 3.0
    assert weight.max() < 1


@pytest.mark.parametrize("bias", [True, False])
def test_lean_maps_are_the_plain_ones_with_and_without_gradients(bias: bool):
    torch.manual_seed(0)
    first, second = nn.Linear(4, 6, bias=bias), nn.Linear(6, 4, bias=bias)
    x = torch.randn(3, 4)
    plain = second(first(x.tanh()).relu())
    lean = lean_feed_forward(first, F.relu, second, Remade(torch.tanh, x))
    assert torch.allclose(lean, plain, atol=1e-6)
    assert torch.allclose(lean_linear(first, Remade(torch.tanh, x)), first(x.tanh()), atol=1e-6)
    with torch.no_grad():
        assert torch.equal(lean_feed_forward(first, F.relu, second, Remade(torch.tanh, x)), plain)
        assert torch.equal(lean_linear(first, x), first(x))


def test_a_hook_that_has_nothing_to_change_says_so():
    module = nn.Identity()
    module.norm = nn.LayerNorm(4)
    with pytest.raises(InputError, match="floating-point tensor"):
        NormedInput("norm")(module, (torch.arange(4),), {})
    with pytest.raises(InputError, match="a tuple that starts with one"):
        on_first({"states": torch.ones(2)}, lambda y: y)
    first, second = Recentred()(module, (), (torch.tensor([[1.0, 3.0]]), "state"))
    assert first.tolist() == [[-1.0, 1.0]]
    assert second == "state"


def test_layers_that_a_batch_does_not_move_are_left_and_weights_are_kept_where_asked():
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
    before = model[0].weight.detach().clone()
    assert lsuv_(model, torch.zeros(5, 4), orthogonal=False) == {"0": 0.0, "1": 0.0}
    assert torch.equal(model[0].weight, before)


@pytest.mark.parametrize("kind", ["kdim", "packed"])
def test_the_roles_of_torchs_attention_are_found_however_its_weights_are_kept(kind: str):
    attention = nn.MultiheadAttention(8, 2, **({"kdim": 6, "vdim": 6} if kind == "kdim" else {}))
    assert [each.role for each in role_weights(attention)] == ["query", "key", "value", "output"]


def test_normed_queries_and_keys_work_with_keys_of_another_width():
    torch.manual_seed(0)
    attention = nn.MultiheadAttention(8, 2, kdim=6, vdim=6, batch_first=True)
    qk_norm_(attention, 4)
    query, key = torch.randn(2, 3, 8), torch.randn(2, 5, 6)
    once, _ = attention(query, key, key)
    twice, _ = attention(query * 100, key, key)
    assert once.shape == (2, 3, 8)
    assert torch.isfinite(twice).all()


def test_cross_attention_with_normed_queries_forgets_how_large_its_inputs_are():
    torch.manual_seed(0)
    model = EncoderDecoder(vocab=11, width=16, heads=2, depth=2, options=Options(qk_norm=True, tie=True))
    logits = model(torch.randint(11, (2, 5)), torch.randint(11, (2, 4)))
    assert logits.shape == (2, 4, 11)


def test_sampling_without_a_limit_may_draw_any_token():
    logits = torch.zeros(200, 3)
    drawn = draw(logits, temperature=1.0, top_k=None, generator=torch.Generator().manual_seed(0))
    assert set(drawn.flatten().tolist()) == {0, 1, 2}
    assert draw(torch.tensor([[0.0, 5.0]]), temperature=0.0, top_k=None, generator=None).item() == 1


def test_a_schedule_of_an_unknown_shape_is_refused():
    with pytest.raises(InputError, match="none, linear or cosine"):
        schedule("square", warmup_steps=1, total_steps=5)


def test_a_block_says_what_it_is_and_a_layer_what_its_weight_does():
    model = MLP(4, 4, 2, 2)
    assert "scheme=" in repr(next(each for each in model.modules() if isinstance(each, Residual)))
    assert [each.role for each in PlainLayer(4, "relu").role_weights()] == ["fc1"]
    assert LanguageModel(vocab=7, width=8, heads=2, depth=1).scheme is not None
