"""Initializers: the variances they promise, and how signals change with them."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from leadline.errors import InputError
from leadline.nn import Encoder, init
from leadline.nn.init import lsuv_

n = st.integers(2, 4096)


@given(fan_in=n, fan_out=n)
def test_variances_are_the_textbook_ones(fan_in, fan_out):
    assert init.lecun(fan_in, fan_out) == 1 / fan_in
    assert init.he(fan_in, fan_out, "relu") == pytest.approx(2 / fan_in)
    assert init.backward(fan_in, fan_out) == pytest.approx(1 / fan_out)
    assert init.xavier(fan_in, fan_out) == 2 / (fan_in + fan_out)


@pytest.mark.parametrize("fill", [init.normal_, init.uniform_, init.truncated_normal_])
def test_a_fill_has_the_requested_variance(fill, generator):
    weight = fill(torch.empty(1000, 400), 0.03, generator=generator)
    assert float(weight.var()) == pytest.approx(
        0.03, rel=5 * (2 / weight.numel()) ** 0.5
    )  # five standard errors
    assert float(weight.mean()) == pytest.approx(0, abs=5 * (0.03 / weight.numel()) ** 0.5)


def test_truncation_without_the_correction_would_be_caught(generator):
    weight = nn.init.trunc_normal_(torch.empty(1000, 400), 0, 1, -2, 2, generator=generator)
    assert float(weight.var()) == pytest.approx(init.TRUNCATED_VARIANCE, rel=0.01)
    assert float(weight.var()) != pytest.approx(1, rel=0.1)


@pytest.mark.parametrize("activation", ["relu", "gelu", "silu", "tanh"])
def test_he_variance_keeps_the_second_moment_through_the_activation(activation, generator):
    """One matrix 1024 x 1024 on 512 inputs: sd of the mean square sqrt(5/1024) at most."""
    from leadline.nn.activations import ACTIVATIONS

    x = ACTIVATIONS[activation](torch.randn(512, 1024, generator=generator))
    weight = init.normal_(torch.empty(1024, 1024), init.he(1024, 1024, activation), generator=generator)
    assert float((x @ weight.T).square().mean()) == pytest.approx(1, abs=4 * (5 / 1024) ** 0.5)


def test_packed_qkv_is_counted_by_its_logical_fan_out():
    packed = torch.empty(3 * 64, 64)
    assert init.fans(packed, packed=3) == (64, 64)
    assert init.fans(packed) == (64, 192)


def test_packed_qkv_of_a_model_starts_at_unit_gain():
    weight = Encoder(128, 4, 1, scheme="deepnorm-adam").stack.blocks[0].attention.branch.qkv.weight
    queries = weight[:128].detach()
    assert float(128 * queries.var()) == pytest.approx(1, rel=0.05)  # five standard errors of 16384 draws


def test_fans_of_a_convolution_count_the_kernel():
    assert init.fans(torch.empty(8, 4, 3, 3)) == (36, 72)


def test_orthogonal_rows_are_orthonormal(generator):
    weight = init.orthogonal_(torch.empty(16, 32), generator=generator)
    torch.testing.assert_close(weight @ weight.T, torch.eye(16))


def test_delta_orthogonal_convolution_keeps_every_norm(generator):
    conv = nn.Conv2d(8, 16, 3, padding=1, bias=False)
    init.delta_orthogonal_(conv.weight, generator=generator)
    x = torch.randn(2, 8, 9, 9, generator=generator)
    torch.testing.assert_close(conv(x).square().sum(), x.square().sum())


@pytest.mark.parametrize("shape", [(4, 8, 3, 3), (8, 8)])
def test_delta_orthogonal_refuses_what_it_cannot_keep(shape):
    with pytest.raises(InputError):
        init.delta_orthogonal_(torch.empty(shape))


def test_vectors_have_no_fans():
    with pytest.raises(InputError, match="dimensions"):
        init.fans(torch.empty(4))


def test_lsuv_gives_every_layer_unit_output_variance_and_leaves_modes_and_statistics(generator):
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Tanh(), nn.Dropout(0.5), nn.Flatten(), nn.Linear(8 * 36, 5)
    ).train()
    batch = torch.randn(32, 3, 8, 8, generator=generator) * 7
    statistics = model[1].running_mean.clone()
    reached = init.lsuv_(model, batch, generator=generator)
    assert set(reached) == {"0", "5"}
    assert all(abs(value - 1) < 0.1 for value in reached.values())
    assert model.training
    assert torch.equal(model[1].running_mean, statistics)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_lsuv_leaves_a_layer_with_zero_output_unchanged(generator):
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 2, bias=False))
    assert init.lsuv_(model, torch.zeros(3, 4)) == {"0": 0.0, "1": 0.0}


def test_lsuv_leaves_layers_without_variance_unchanged():
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
    before = model[0].weight.detach().clone()
    assert lsuv_(model, torch.zeros(5, 4), orthogonal=False) == {"0": 0.0, "1": 0.0}
    assert torch.equal(model[0].weight, before)
