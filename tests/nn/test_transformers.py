"""Transformers: what may see what, positions, caches, ties, and clear answers to bad input."""

import math
import re

import pytest
import torch

from leadline.errors import InputError
from leadline.nn import SCHEMES, Encoder, EncoderDecoder, LanguageModel, Options
from leadline.nn.attention import rotary_tables, rotate, sinusoidal_table
from leadline.nn.language import sample_token

POSITIONS = ("none", "learned", "sinusoidal", "rotary")
tokens = torch.randint(0, 20, (2, 9), generator=torch.Generator().manual_seed(0))


def model(**options) -> LanguageModel:
    generator = torch.Generator().manual_seed(0)
    return LanguageModel(
        20, 32, 2, 3, scheme="pre", max_len=16, options=Options(**options), generator=generator
    )


@pytest.mark.parametrize("name", SCHEMES)
def test_a_language_model_never_sees_the_future(name):
    language = LanguageModel(20, 32, 2, 3, scheme=name, max_len=16).eval()
    changed = tokens.clone()
    changed[:, 5:] = (changed[:, 5:] + 1) % 20
    assert torch.equal(language(tokens)[:, :5], language(changed)[:, :5])


@pytest.mark.parametrize("positions", POSITIONS)
def test_cached_steps_give_the_logits_of_one_full_pass(positions):
    language = model(positions=positions).eval()
    caches = language.make_caches(2, 9)
    parts = [language.step(piece, caches) for piece in tokens.split((4, 1, 3, 1), dim=1)]
    torch.testing.assert_close(torch.cat(parts, dim=1), language(tokens), atol=1e-5, rtol=1e-5)


def test_generation_continues_the_prompt_with_the_likeliest_tokens():
    language = model()
    out = language.generate(tokens, 5, temperature=0.0)
    expected = tokens
    language.eval()
    with torch.no_grad():
        for _ in range(5):
            expected = torch.cat((expected, language(expected)[:, -1:].argmax(-1)), dim=1)
    assert torch.equal(out, expected)


def test_generation_draws_from_the_generator_it_is_given_and_restores_the_mode():
    language = model(dropout=0.5).train()
    draws = [
        language.generate(tokens, 4, top_k=3, generator=torch.Generator().manual_seed(7)) for _ in range(2)
    ]
    assert torch.equal(*draws)
    assert language.training


def test_padding_does_not_change_what_the_tokens_get():
    encoder = Encoder(32, 2, 3, scheme="pre", options=Options(positions="rotary"))
    x = torch.randn(2, 7, 32)
    mask = torch.ones(2, 7, dtype=torch.bool)
    mask[:, 5:] = False
    garbage = x.clone()
    garbage[:, 5:] = 1e3
    torch.testing.assert_close(encoder(garbage, mask)[:, :5], encoder(x[:, :5]), atol=1e-5, rtol=1e-5)


def test_left_padding_with_causality_gives_no_nan():
    mask = torch.ones(2, 9, dtype=torch.bool)
    mask[0, :4] = False
    logits = model()(tokens, mask)
    logits.sum().backward()
    assert bool(logits.isfinite().all())


def test_rotary_scores_depend_on_the_distance_alone():
    cos, sin = rotary_tables(12, 8)
    query, key = torch.randn(2, 1, 1, 1, 8, dtype=torch.float64)
    cos, sin = cos.double(), sin.double()

    def score(i, j):
        return float(
            (
                rotate(query, cos[i : i + 1], sin[i : i + 1]) * rotate(key, cos[j : j + 1], sin[j : j + 1])
            ).sum()
        )

    assert score(3, 1) == pytest.approx(score(9, 7), abs=1e-5)  # tables are float32
    assert score(3, 1) != pytest.approx(score(3, 2), abs=1e-3)


def test_sinusoidal_table_has_unit_second_moment():
    assert float(sinusoidal_table(64, 32).square().mean()) == pytest.approx(
        1.0
    )  # sin^2 + cos^2 = 1, doubled and halved


def test_first_loss_of_a_language_model_is_that_of_unit_logits():
    """E ln sum exp(N(0,1)) - 0 is ln V + 1/2 for large V; tied or not."""
    for tie in (False, True):
        generator = torch.Generator().manual_seed(0)
        wide = torch.randint(0, 200, (8, 16), generator=generator)
        language = LanguageModel(200, 64, 4, 2, scheme="pre", options=Options(tie=tie), generator=generator)
        shuffled = wide[:, torch.randperm(16, generator=generator)]
        loss = torch.nn.functional.cross_entropy(language(wide).flatten(0, 1), shuffled.flatten())
        assert float(loss.detach()) == pytest.approx(
            math.log(200) + 0.5, abs=0.3
        )  # 128 targets of unit variance


def test_tied_models_have_no_second_vocabulary_matrix():
    shapes = [tuple(p.shape) for p in model(tie=True).parameters()]
    assert shapes.count((20, 32)) == 1
    assert [tuple(p.shape) for p in model().parameters()].count((20, 32)) == 2


def test_query_key_norm_bounds_the_attention_logits():
    attention = (
        Encoder(32, 2, 1, scheme="pre", options=Options(qk_norm=True)).stack.blocks[0].attention.branch
    )
    query = attention.norm_query(1e3 * torch.randn(1, 2, 5, 16)).detach()
    assert float(query.norm(dim=-1).max()) <= 4.001  # sqrt(16 features)


def test_gated_feed_forward_has_about_as_many_parameters_as_the_plain_one():
    count = [sum(p.numel() for p in model(feed_forward=kind).parameters()) for kind in ("gelu", "swiglu")]
    assert count[1] == pytest.approx(count[0], rel=0.05)


@pytest.mark.parametrize("kind", ["gelu", "relu", "swiglu"])
def test_a_feed_forward_with_unit_input_has_unit_output(kind):
    branch = (
        Encoder(256, 4, 1, scheme="pre", options=Options(feed_forward=kind))
        .stack.blocks[0]
        .feed_forward.branch
    )
    out = branch(torch.randn(256, 256)).detach()
    assert float(out.square().mean()) == pytest.approx(1.0, abs=4 * (5 / 256) ** 0.5)  # four sd of a draw


def test_dropout_acts_in_training_only():
    language = model(dropout=0.3)
    assert not torch.equal(language(tokens), language(tokens))
    language.eval()
    assert torch.equal(language(tokens), language(tokens))


@pytest.mark.parametrize("name", SCHEMES)
def test_an_encoder_decoder_sees_source_and_past_but_not_the_future_or_padding(name):
    pair = EncoderDecoder(20, 32, 2, 2, scheme=name, max_len=16).eval()
    if pair.scheme.zero_head:
        torch.nn.init.normal_(pair.head.weight)
    mask = torch.ones(2, 9, dtype=torch.bool)
    mask[:, 7:] = False
    source, target = tokens, tokens.flip(1)
    future, padded, other = target.clone(), source.clone(), source.clone()
    future[:, 4:] = 0
    padded[:, 7:] = 3
    other[:, 0] = (other[:, 0] + 1) % 20
    plain = pair(source, target, mask)
    assert torch.equal(plain[:, :4], pair(source, future, mask)[:, :4])
    assert torch.equal(plain, pair(padded, target, mask))
    identity = pair.scheme.identity_at_init or name == "none"
    assert identity or not torch.equal(plain, pair(other, target, mask))


def test_encoder_decoder_uses_the_deepnorm_constants_of_a_pair():
    pair = EncoderDecoder(20, 32, 2, 4, decoder_depth=2, scheme="deepnorm")
    assert pair.encoder.blocks[0].attention.skip == pytest.approx(0.81 * (4**4 * 2) ** (1 / 16))
    assert pair.decoder.blocks[0].cross.skip == pytest.approx(6**0.25)


BAD = {
    "heads": lambda: Encoder(32, 5, 2),
    "depth": lambda: Encoder(32, 2, 0),
    "scheme": lambda: LanguageModel(20, 32, 2, 2, scheme="prenorm"),
    "mask": lambda: Encoder(32, 2, 2)(torch.randn(2, 5, 32), torch.ones(2, 4, dtype=torch.bool)),
    "width": lambda: Encoder(32, 2, 2)(torch.randn(2, 5, 31)),
    "tokens": lambda: model()(torch.randn(2, 5)),
    "max_len": lambda: model().generate(tokens, 100),
    "positions": lambda: Options(positions="rotatory"),
    "dropout": lambda: Options(dropout=1.0),
    "even": lambda: Encoder(6, 2, 1, options=Options(positions="rotary")),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_input_is_named_in_the_error_with_what_to_do(what):
    with pytest.raises(InputError, match=what) as caught:
        BAD[what]()
    assert caught.value.fix


def test_models_can_be_built_without_memory_on_the_meta_device():
    with torch.device("meta"):
        encoder = Encoder(512, 8, 100, scheme="deepnorm")
    assert encoder.stack.blocks[99].feed_forward.branch.fc1.weight.device.type == "meta"


@pytest.mark.parametrize(
    ("build", "named"),
    [
        (lambda: Options(checkpoint_every=-1), "checkpoint_every=-1"),
        (lambda: Options(hidden=0), "hidden=0"),
        (lambda: LanguageModel(0, 8, 2, 1), "a layer from 8 to 0"),
        (lambda: model().generate(tokens, 1, top_k=0), "top_k=0"),
        (lambda: model().generate(tokens, 1, temperature=-1.0), "temperature=-1.0"),
        (lambda: EncoderDecoder(8, 8, 2, 1)(tokens.float(), tokens), "source"),
        (lambda: EncoderDecoder(8, 8, 2, 1)(tokens, tokens.float()), "target"),
    ],
)
def test_sizes_and_ids_that_cannot_be_are_refused_by_name(build, named):
    with pytest.raises(InputError, match=re.escape(named)):
        build()


def test_sampling_without_a_limit_may_draw_any_token():
    logits = torch.zeros(200, 3)
    drawn = sample_token(logits, temperature=1.0, top_k=None, generator=torch.Generator().manual_seed(0))
    assert set(drawn.flatten().tolist()) == {0, 1, 2}
    assert sample_token(torch.tensor([[0.0, 5.0]]), temperature=0.0, top_k=None, generator=None).item() == 1


def test_a_language_model_has_a_scheme():
    assert LanguageModel(vocab=7, width=8, heads=2, depth=1).scheme is not None
