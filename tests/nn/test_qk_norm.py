"""Norms for queries and keys of attention that exists already."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leadline.errors import InputError
from leadline.nn import EncoderDecoder, LanguageModel, Options
from leadline.nn.attention import SelfAttention
from leadline.nn.qk_norm import HeadNormed, qk_norm_

WIDTH, HEADS, TIME = 12, 3, 5


def multi_head(**options: object) -> nn.MultiheadAttention:
    torch.manual_seed(0)
    return nn.MultiheadAttention(WIDTH, HEADS, **options)


def neutral(attention: nn.MultiheadAttention) -> nn.MultiheadAttention:
    """With norms that change nothing, so that what is computed around them can be compared."""
    qk_norm_(attention, WIDTH // HEADS)
    attention.norm_query = attention.norm_key = nn.Identity()
    return attention


def signals(*shape: int, count: int = 3) -> list[Tensor]:
    return list(torch.randn(count, *shape, generator=torch.Generator().manual_seed(1)))


MASKS = {
    "open": {},
    "causal": {"attn_mask": torch.ones(TIME, TIME, dtype=torch.bool).triu(1), "is_causal": True},
    "added": {"attn_mask": torch.linspace(-2, 2, TIME * TIME).view(TIME, TIME)},
    "by head": {"attn_mask": torch.eye(TIME, dtype=torch.bool).repeat(2 * HEADS, 1, 1)},
    "padded": {"key_padding_mask": torch.tensor([[False] * 4 + [True], [False] * 3 + [True] * 2])},
    "both": {
        "attn_mask": torch.ones(TIME, TIME, dtype=torch.bool).triu(1),
        "key_padding_mask": torch.tensor([[False] * 4 + [True]] * 2),
    },
}


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("options", [{}, {"kdim": WIDTH, "vdim": WIDTH}, {"bias": False}], ids=str)
@pytest.mark.parametrize("alike", [True, False], ids=["self", "cross"])
def test_but_for_its_norms_it_computes_what_torch_computes(options, mask, alike):
    attention = multi_head(batch_first=True, **options)
    query, key, value = signals(2, TIME, WIDTH) if not alike else signals(2, TIME, WIDTH)[:1] * 3
    for named in ({"need_weights": False}, {}, {"average_attn_weights": False}):
        expected = attention(query, key, value, **MASKS[mask], **named)
        got = neutral(copy.deepcopy(attention))(query, key, value, **MASKS[mask], **named)
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shape", [(TIME, 2, WIDTH), (TIME, WIDTH)], ids=["time first", "no batch"])
def test_layouts_other_than_batch_first_are_supported(shape):
    attention = multi_head()
    query, key, value = signals(*shape)
    expected = attention(query, key, value)
    torch.testing.assert_close(neutral(attention)(query, key, value), expected, rtol=1e-4, atol=1e-5)


def test_logits_are_bounded_for_any_weights():
    attention = qk_norm_(multi_head(batch_first=True), WIDTH // HEADS)
    attention.in_proj_weight.data[: 2 * WIDTH] *= 1e4
    (x,) = signals(2, TIME, WIDTH, count=1)
    weights = attention(x, x, x, average_attn_weights=False)[1].detach()
    assert float((weights.amax(-1) / weights.amin(-1)).max()) <= torch.e ** (2 * (WIDTH // HEADS) ** 0.5)


@pytest.mark.parametrize("grad", [True, False], ids=["grad", "no grad"])
def test_a_fused_encoder_layer_in_evaluation_has_the_norms_too(grad):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True)
    (x,) = signals(2, TIME, 16, count=1)
    with torch.set_grad_enabled(grad):
        qk_norm_(layer.self_attn, 4)
        trained, evaluated = layer.train()(x), layer.eval()(x)
        torch.testing.assert_close(trained, evaluated)
        layer.self_attn.norm_query.weight.data *= 3
        assert not torch.allclose(layer(x), evaluated)


class Packed(nn.Module):
    """One matrix for queries, keys and values, and torch's fused attention."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3 * HEADS, -1)).transpose(1, 2).chunk(3, 1)
        return F.scaled_dot_product_attention(q, k, value=v, is_causal=True).transpose(1, 2).flatten(-2)


def test_any_module_that_calls_fused_attention_can_have_the_norms():
    torch.manual_seed(0)
    module, width = Packed(), WIDTH // HEADS
    (x,) = signals(2, TIME, WIDTH, count=1)
    q, k, v = module.qkv(x).unflatten(-1, (3 * HEADS, -1)).transpose(1, 2).chunk(3, 1)
    q, k = F.rms_norm(q, (width,)), F.rms_norm(k, (width,))
    expected = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(-2)
    assert torch.equal(qk_norm_(module, width)(x), expected)
    assert torch.equal(copy.deepcopy(module)(x), expected)


def test_the_attention_of_leadline_is_what_it_would_have_been_if_built_so():
    torch.manual_seed(0)
    built = LanguageModel(7, WIDTH, HEADS, 2, options=Options(qk_norm=True))
    plain = LanguageModel(7, WIDTH, HEADS, 2)
    plain.load_state_dict(built.state_dict(), strict=False)
    for module in plain.modules():
        if isinstance(module, SelfAttention):
            qk_norm_(module, WIDTH // HEADS)
            module.norm_query = module.norm_key = built.stack.blocks[0].attention.branch.norm_query
    tokens = torch.randint(0, 7, (2, TIME))
    assert plain.state_dict().keys() == built.state_dict().keys()
    assert torch.equal(plain(tokens), built(tokens))


def test_a_projection_is_normalized_head_by_head():
    projection = nn.Linear(WIDTH, WIDTH)
    projection.norm = nn.RMSNorm(4)
    projection.register_forward_hook(HeadNormed("norm", 4))
    y = projection(torch.randn(2, TIME, WIDTH)).unflatten(-1, (HEADS, 4))
    torch.testing.assert_close(y.square().mean(-1), torch.ones(2, TIME, HEADS), rtol=1e-3, atol=1e-3)


def test_attention_with_qk_norm_or_extra_keys_is_refused():
    attention = qk_norm_(multi_head(), 4)
    with pytest.raises(InputError, match="already has it"):
        qk_norm_(attention, 4)
    with pytest.raises(InputError, match="extra key"):
        qk_norm_(multi_head(add_zero_attn=True), 4)


def test_normed_queries_and_keys_work_with_keys_of_another_width():
    torch.manual_seed(0)
    attention = nn.MultiheadAttention(8, 2, kdim=6, vdim=6, batch_first=True)
    qk_norm_(attention, 4)
    query, key = torch.randn(2, 3, 8), torch.randn(2, 5, 6)
    once, _ = attention(query, key, key)
    twice, _ = attention(query * 100, key, key)
    assert once.shape == (2, 3, 8)
    assert torch.isfinite(twice).all()


def test_qk_norm_works_in_an_encoder_decoder_with_tied_embeddings():
    torch.manual_seed(0)
    model = EncoderDecoder(vocab=11, width=16, heads=2, depth=2, options=Options(qk_norm=True, tie=True))
    logits = model(torch.randint(11, (2, 5)), torch.randint(11, (2, 4)))
    assert logits.shape == (2, 4, 11)
