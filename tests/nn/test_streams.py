"""Schemes with several streams, learned connections or no norm: identities at the start, and that each trains."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import leadline
from leadline.nn import SCHEMES, Encoder, LanguageModel, Options, Residual
from leadline.nn.scheme import Place
from leadline.nn.streams import STREAMS, ConstrainedConnection, DepthAttention, DynamicTanh, open_stream

NEW = [name for name, row in SCHEMES.items() if not row.is_weighted_sum]
LIKE_PRE_NORM = (
    "attention-residuals",
    "attention-residuals-block",
    "hyper-connections",
    "mhc",
    "mhc-lite",
    "gpas",
)
PLACE = Place(index=0, depth=4)
x = torch.randn(2, 6, 32, generator=torch.Generator().manual_seed(5))


def encoder(scheme: str, depth: int = 4) -> Encoder:
    return Encoder(32, 2, depth, scheme=scheme, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("name", LIKE_PRE_NORM)
def test_at_the_start_the_function_is_that_of_pre_norm(name: str):
    torch.testing.assert_close(encoder(name)(x), encoder("pre")(x), atol=1e-3, rtol=1e-3)


def test_attention_over_depth_is_the_published_formula():
    attention = DepthAttention(16)
    nn.init.normal_(attention.query)
    values = tuple(torch.randn(3, 5, 16) for _ in range(4))
    logits = torch.stack([F.rms_norm(v, (16,), eps=1e-6) @ attention.query for v in values])
    expected = sum(weight.unsqueeze(-1) * v for weight, v in zip(logits.softmax(0), values, strict=True))
    torch.testing.assert_close(attention.read(values), expected)


@pytest.mark.parametrize(("depth", "values"), [(2, 5), (4, 9), (20, 9)])
def test_blocks_of_attention_residuals_keep_a_value_for_each_of_at_most_eight_groups(depth: int, values: int):
    model = encoder("attention-residuals-block", depth)
    state = open_stream(SCHEMES["attention-residuals-block"], x)
    for residual in (each for each in model.modules() if isinstance(each, Residual)):
        state = residual.connection.write(state, torch.ones_like(x))
    assert len(state) == values
    torch.testing.assert_close(sum(state), x + 2 * depth)


@pytest.mark.parametrize("lite", [False, True])
def test_rows_and_columns_of_a_constrained_mixing_sum_to_one(lite: bool):
    connection = ConstrainedConnection(16, PLACE, lite=lite)
    nn.init.normal_(connection.project, std=0.02)
    nn.init.normal_(connection.base)
    nn.init.ones_(connection.gates)
    reads, writes, mix = connection.maps(torch.randn(3, 5, STREAMS, 16))
    ones = torch.ones(3, 5, STREAMS)
    torch.testing.assert_close(mix.sum(-1), ones, atol=1e-6 if lite else 1e-3, rtol=0)
    torch.testing.assert_close(mix.sum(-2), ones, atol=1e-6 if lite else 1e-3, rtol=0)
    assert bool((mix >= 0).all())
    assert bool(((reads > 0) & (reads < 1) & (writes > 0) & (writes < 2)).all())


def test_the_product_of_constrained_mixings_never_grows():
    connection = ConstrainedConnection(16, PLACE, lite=True)
    nn.init.normal_(connection.base)
    product = torch.eye(STREAMS)
    for _ in range(50):
        nn.init.normal_(connection.base)
        product = connection.maps(torch.zeros(STREAMS, 16))[2] @ product
    assert float(torch.linalg.matrix_norm(product.detach(), 2)) == pytest.approx(1, abs=1e-4)


def test_hyper_connections_mix_read_and_write_as_published():
    residual = encoder("hyper-connections").stack.blocks[0].attention
    connection = residual.connection
    for parameter in connection.parameters():
        nn.init.normal_(parameter)
    streams = torch.randn(2, 6, STREAMS, 32)
    read = sum(connection.reads[i] * streams[..., i, :] for i in range(STREAMS))
    y = residual.branch(residual.norm_pre(read))
    expected = torch.stack(
        [
            sum(connection.mix[i, j] * streams[..., j, :] for j in range(STREAMS)) + connection.writes[i] * y
            for i in range(STREAMS)
        ],
        dim=-2,
    )
    torch.testing.assert_close(residual(streams), expected)


def test_the_dual_scheme_keeps_a_post_norm_stream_and_a_plain_sum():
    model = encoder("dual", depth=1)
    block = model.stack.blocks[0]
    first = block.attention.branch(x)
    post = F.layer_norm(x + first, (32,))
    second = block.feed_forward.branch(post)
    expected = F.layer_norm(post + second, (32,)) + F.layer_norm(x + first + second, (32,))
    torch.testing.assert_close(model(x), expected)


def test_siamese_streams_are_the_published_ones():
    model = encoder("siamese", depth=2)
    post, plain = x, x
    for index, block in enumerate(model.stack.blocks):
        for residual in (block.attention, block.feed_forward):
            post = F.layer_norm(post, (32,))
            y = residual.branch(F.layer_norm(post + F.layer_norm(plain, (32,)), (32,)))
            post, plain = post + y / (2 * (index + 1)) ** 0.5, plain + y
    expected = F.layer_norm(F.layer_norm(post, (32,)) + F.layer_norm(plain, (32,)), (32,))
    torch.testing.assert_close(model(x), expected, atol=1e-5, rtol=1e-5)


def test_later_attentions_read_the_mean_of_their_values_and_the_first_ones():
    model = encoder("value-residual", depth=2)
    first, second = (block.attention for block in model.stack.blocks)
    seen = []
    handle = second.branch.output.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    model(x)
    handle.remove()
    values = first.branch.qkv(first.norm_pre(x)).chunk(3, -1)[2]
    stream = model.stack.blocks[0](x)
    query, key, value = second.branch.qkv(second.norm_pre(stream)).chunk(3, -1)
    heads = [each.view(2, 6, 2, 16).transpose(1, 2) for each in (query, key, (value + values) / 2)]
    expected = F.scaled_dot_product_attention(*heads).transpose(1, 2).reshape(2, 6, 32)
    torch.testing.assert_close(seen[0], expected)


def test_value_residuals_have_the_same_gradients_with_checkpoints():
    def gradients(every: int) -> list[Tensor]:
        generator = torch.Generator().manual_seed(0)
        options = Options(checkpoint_every=every)
        model = Encoder(32, 2, 4, scheme="value-residual", options=options, generator=generator)
        return list(torch.autograd.grad(model(x).square().sum(), list(model.parameters())))

    for whole, parts in zip(gradients(0), gradients(1), strict=True):
        torch.testing.assert_close(whole, parts)


def test_attenuation_shrinks_the_signal_and_keeps_the_gradient():
    residual = encoder("gpas").stack.blocks[0].attention
    inputs = x.clone().requires_grad_()
    plain = residual(inputs)
    gradient = torch.autograd.grad(plain.sum(), inputs)[0]
    nn.init.constant_(residual.connection.gate, 1.0)
    attenuated = residual(inputs)
    torch.testing.assert_close(attenuated, plain * (1 - F.silu(torch.tensor(1.0))))
    torch.testing.assert_close(torch.autograd.grad(attenuated.sum(), inputs)[0], gradient)


def test_the_stream_of_ngpt_stays_on_a_sphere():
    out = encoder("ngpt", depth=12)(x)
    torch.testing.assert_close(out.square().mean(-1), torch.ones(2, 6), atol=1e-3, rtol=0)


def test_the_step_of_ngpt_starts_on_the_sphere_and_has_a_positive_length():
    residual = encoder("ngpt").stack.blocks[0].attention
    long = 3.0 * x
    start, target = (F.rms_norm(each, (32,), eps=1e-6) for each in (long, residual.branch(long)))
    expected = F.rms_norm(start + 0.05 * (target - start), (32,), eps=1e-6)
    torch.testing.assert_close(residual(long), expected, atol=1e-5, rtol=1e-5)
    with torch.no_grad():
        residual.connection.rate.neg_()
    torch.testing.assert_close(residual(long), expected, atol=1e-5, rtol=1e-5)


def test_dynamic_tanh_is_its_formula():
    tanh = DynamicTanh(32)
    torch.testing.assert_close(tanh(x), torch.tanh(0.5 * x))
    assert all(
        isinstance(m, DynamicTanh) for n, m in encoder("dyt").named_modules() if n.endswith("norm_pre")
    )


def test_hybrid_normalizes_the_stream_before_the_feed_forward_and_q_k_v_before_the_attention():
    block = encoder("hybrid").stack.blocks[1]
    attention, normalized = block.attention(x), F.layer_norm(block.attention(x), (32,))
    torch.testing.assert_close(block(x), normalized + block.feed_forward.branch(normalized))
    torch.testing.assert_close(attention, x + block.attention.branch(x))
    assert block.attention.branch.norm_value is not None


def test_a_stack_opens_as_many_streams_as_its_scheme_has():
    assert open_stream(SCHEMES["mhc"], x).shape == (2, 6, STREAMS, 32)
    assert len(open_stream(SCHEMES["dual"], x)) == 2
    assert open_stream(SCHEMES["pre"], x) is x


def language_loss(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


@pytest.mark.parametrize("name", NEW)
def test_every_one_of_them_trains_and_gets_no_warning(name: str):
    torch.manual_seed(0)
    model = LanguageModel(17, 32, 2, 6, scheme=name, max_len=16)
    tokens = torch.arange(16).repeat(4, 1).add(torch.arange(4).unsqueeze(1)) % 17
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    report = leadline.check(
        model, tokens, (tokens + 1) % 17, language_loss, optimizer, rehearse=False, probes=False
    )
    assert [(each.code, each.message) for each in report.findings if each.severity != "info"] == []
    losses = []
    for _ in range(20):
        loss = language_loss(model(tokens), (tokens + 1) % 17)
        losses.append(float(loss.detach()))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert losses[-1] < 0.6 * losses[0]
    residuals = [module for module in model.modules() if isinstance(module, Residual)]
    assert all(any(p.grad.any() for p in each.parameters() if p.grad is not None) for each in residuals)


@pytest.mark.parametrize("name", NEW)
def test_cached_steps_give_the_logits_of_one_full_pass(name: str):
    language = LanguageModel(
        17, 32, 2, 3, scheme=name, max_len=16, generator=torch.Generator().manual_seed(0)
    ).eval()
    tokens = torch.randint(0, 17, (2, 9), generator=torch.Generator().manual_seed(1))
    caches = language.make_caches(2, 9)
    parts = [language.step(piece, caches) for piece in tokens.split((4, 1, 4), dim=1)]
    torch.testing.assert_close(torch.cat(parts, dim=1), language(tokens), atol=1e-5, rtol=1e-5)
