"""At initialization the stream of every scheme has the second moment that its formula predicts."""

import math

import pytest
import torch

from leadline.nn import MLP, SCHEMES, Encoder, Options
from tests.support.closed_forms import stream

WIDTH, DEPTH, SAMPLES = 128, 12, 256
SIGMAS = 4.0  # of the predicted scatter over draws; with 44 comparisons a right formula fails 1 time in 360
SAMPLING = (
    4 * math.sqrt(2 / (WIDTH * SAMPLES)) + 1e-3
)  # scatter of the input's own mean square, and LayerNorm's eps


def encoder_stream_ms(name: str) -> float:
    """Mean square of the stream of an encoder on single tokens, where attention is exactly O V x."""
    options = Options(positions="none", feed_forward="relu")
    model = Encoder(WIDTH, 4, DEPTH, scheme=name, options=options, generator=torch.Generator().manual_seed(1))
    model.stack.final_norm = None
    x = torch.randn(SAMPLES, 1, WIDTH, generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        return float(model(x).square().mean())


WEIGHTED_SUMS = [name for name, row in SCHEMES.items() if row.is_weighted_sum]


@pytest.mark.parametrize("name", WEIGHTED_SUMS)
def test_encoder_stream_has_its_closed_form_second_moment(name):
    expected = stream(SCHEMES[name], DEPTH, ("attention", "feed_forward"), WIDTH)
    band = SIGMAS * math.sqrt(expected.spread) + SAMPLING
    assert abs(math.log(encoder_stream_ms(name) / expected.q)) < band


@pytest.mark.parametrize(
    "name", [name for name in WEIGHTED_SUMS if SCHEMES[name].base == "unit" and name != "none"]
)
def test_mlp_stream_has_its_closed_form_second_moment(name):
    model = MLP(WIDTH, WIDTH, DEPTH, 4, scheme=name, generator=torch.Generator().manual_seed(3))
    x = torch.randn(SAMPLES, WIDTH, generator=torch.Generator().manual_seed(4))
    with torch.no_grad():
        for block in model.blocks:
            x = block(x)
    expected = stream(SCHEMES[name], DEPTH, ("feed_forward",), WIDTH)
    band = SIGMAS * math.sqrt(expected.spread) + SAMPLING
    assert abs(math.log(float(x.square().mean()) / expected.q)) < band


def test_a_formula_with_the_branch_weight_wrong_by_a_fifth_is_caught():
    expected = stream(SCHEMES["pre"], DEPTH, ("attention", "feed_forward"), WIDTH)
    wrong = 1 + (expected.q - 1) * 1.2**2
    band = SIGMAS * math.sqrt(expected.spread) + SAMPLING
    assert abs(math.log(encoder_stream_ms("pre") / wrong)) > band


@pytest.mark.parametrize("name", [name for name in SCHEMES if SCHEMES[name].identity_at_init])
def test_schemes_that_claim_it_are_the_identity_at_initialization(name):
    x = torch.randn(2, 5, 32)
    assert torch.equal(Encoder(32, 2, 6, scheme=name)(x), x)


def test_only_the_weights_of_rezero_learn_in_its_first_step():
    model = Encoder(32, 2, 6, scheme="rezero")
    model(torch.randn(2, 5, 32)).square().sum().backward()
    for name, parameter in model.named_parameters():
        is_residual_weight = name.endswith(("attention.weight", "feed_forward.weight"))
        assert (float(parameter.grad.abs().sum()) > 0) == is_residual_weight


def test_layers_of_a_stack_are_drawn_independently():
    blocks = Encoder(32, 2, 4, scheme="pre").stack.blocks
    first, second = (block.attention.branch.qkv.weight for block in blocks[:2])
    assert not torch.equal(first, second)


def test_the_same_generator_seed_builds_the_same_model_and_leaves_the_global_one_alone(generator):
    state = torch.get_rng_state()
    first = Encoder(16, 2, 2, scheme="pre", generator=generator).state_dict()
    second = Encoder(16, 2, 2, scheme="pre", generator=torch.Generator().manual_seed(0)).state_dict()
    assert all(torch.equal(first[key], second[key]) for key in first)
    assert torch.equal(state, torch.get_rng_state())
