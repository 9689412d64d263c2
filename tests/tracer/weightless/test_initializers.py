"""What a constructor would write is known without writing it: moments agree with real draws of the same constructor."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.nn import init
from torch.nn.utils import parametrizations, skip_init

from leadline.tracer.weightless.build import build_without_weights
from leadline.tracer.weightless.distribution import truncated_normal
from tests.support.init_agreement import SIGMAS, Holder, disagreement, drawn, followed, worst

LAYERS = {
    "linear": lambda: nn.Linear(60, 50),
    "bilinear": lambda: nn.Bilinear(20, 30, 40),
    "conv1d": lambda: nn.Conv1d(20, 30, 3),
    "conv2d": lambda: nn.Conv2d(12, 30, 3, groups=2),
    "conv3d": lambda: nn.Conv3d(4, 40, 3),
    "transposed": lambda: nn.ConvTranspose2d(20, 30, 3),
    "embedding": lambda: nn.Embedding(50, 60),
    "padded embedding": lambda: nn.Embedding(10, 600, padding_idx=3),
    "embedding bag": lambda: nn.EmbeddingBag(50, 60),
    "layer norm": lambda: nn.LayerNorm(50),
    "rms norm": lambda: nn.RMSNorm(50),
    "batch norm": lambda: nn.BatchNorm2d(50),
    "group norm": lambda: nn.GroupNorm(2, 50),
    "prelu": lambda: nn.PReLU(50),
    "attention": lambda: nn.MultiheadAttention(64, 4, add_bias_kv=True),
    "attention, other widths": lambda: nn.MultiheadAttention(64, 4, kdim=50, vdim=70),
    "rnn": lambda: nn.RNN(40, 50),
    "lstm": lambda: nn.LSTM(30, 40, num_layers=2, bidirectional=True),
    "gru": lambda: nn.GRU(40, 50),
    "encoder layer": lambda: nn.TransformerEncoderLayer(48, 4, 96),
    "decoder layer": lambda: nn.TransformerDecoderLayer(48, 4, 96),
    "transformer": lambda: nn.Transformer(48, 4, 2, 2, 96, batch_first=True),
    "weight norm": lambda: parametrizations.weight_norm(nn.Linear(100, 200)),
}

FUNCTIONS = {
    "normal": lambda w: init.normal_(w, 0.5, 0.02),
    "uniform": lambda w: init.uniform_(w, -1.0, 3.0),
    "truncated normal, wide": lambda w: init.trunc_normal_(w, std=0.02),
    "truncated normal, tight": lambda w: init.trunc_normal_(w, std=1.0, a=-1.0, b=0.5),
    "truncated normal, tail": lambda w: init.trunc_normal_(w, std=1.0, a=1.5, b=3.0),
    "constant": lambda w: init.constant_(w, 0.3),
    "ones": init.ones_,
    "zeros": init.zeros_,
    "eye": init.eye_,
    "xavier uniform": lambda w: init.xavier_uniform_(w, gain=2.0),
    "xavier normal": init.xavier_normal_,
    "kaiming uniform": lambda w: init.kaiming_uniform_(w, a=math.sqrt(5)),
    "kaiming normal": lambda w: init.kaiming_normal_(w, mode="fan_out", nonlinearity="relu"),
    "orthogonal, tall": lambda w: init.orthogonal_(w, gain=2.0),
    "orthogonal, flat": lambda w: init.orthogonal_(w.t()),
    "sparse": lambda w: init.sparse_(w, 0.3, std=0.5),
}


def by_erfinv(std):
    """A truncated normal as older code draws it: a uniform through the inverse error function."""
    w = torch.empty(80, 60).uniform_(-0.95, 0.95)
    return w.erfinv_().mul_(std * math.sqrt(2)).add_(0.1).clamp_(-2.0, 2.0)


def by_slices():
    """A packed projection: each third has a different scale, the last is zero, then all is halved."""
    w = torch.empty(90, 50)
    init.normal_(w[:30], std=0.1)
    init.normal_(w[30:60], std=0.2)
    init.zeros_(w[60:])
    return w.mul_(0.5)


def by_columns():
    w = torch.empty(60, 90).normal_(0.0, 2.0)
    w[:, :30] = 0.0
    w[:, 30:60].mul_(3.0)
    return w


def by_heads():
    w = torch.empty(3, 4, 16, 60)
    w[0].normal_(0.0, 0.1)
    w[1:].view(2, 64, 60)[1].uniform_(-1, 1)
    w[1].fill_(0.25)
    return w.view(192, 60)


def time_steps():
    """The bias of a state-space model: log-uniform steps through the inverse of softplus."""
    low, high = math.log(1e-3), math.log(1e-1)
    step = torch.exp(torch.rand(4000) * (high - low) + low).clamp(min=1e-4)
    return step + torch.log(-torch.expm1(-step))


def positions():
    angle = torch.arange(80).unsqueeze(1) * torch.exp(torch.arange(0, 32, 2) * (-math.log(1e4) / 32))
    table = torch.zeros(80, 32)
    table[:, 0::2], table[:, 1::2] = torch.sin(angle), torch.cos(angle)
    return table


EXPRESSIONS = {
    "randn scaled and shifted": lambda: torch.randn(80, 60) * 0.3 + 1,
    "rand stretched": lambda: (torch.rand(80, 60) - 0.5) / 4,
    "empty, then drawn": lambda: torch.empty(80, 60).normal_(std=0.1).neg_(),
    "a square": lambda: torch.randn(80, 60) ** 2,
    "one draw twice": lambda: (lambda x: x + x.tanh())(torch.randn(80, 60)),
    "two draws added": lambda: torch.randn(80, 60) + torch.rand(80, 60),
    "two draws multiplied": lambda: torch.randn(80, 60) * torch.rand(80, 60),
    "a draw and its transpose": lambda: (lambda x: x + x.t().contiguous())(torch.randn(70, 70)),
    "joined": lambda: torch.cat([torch.zeros(20, 60), torch.randn(60, 60) * 2]),
    "stacked and moved": lambda: (
        torch.stack([torch.randn(40, 30), torch.ones(40, 30)]).permute(2, 0, 1).contiguous()
    ),
    "repeated": lambda: torch.randn(40, 60).repeat(3, 1),
    "log-normal": lambda: torch.empty(9000).log_normal_(0.0, 0.3),
    "exponential": lambda: torch.empty(9000).exponential_(2.0),
    "bernoulli": lambda: torch.empty(9000).bernoulli_(0.3),
    "integers": lambda: torch.randint(3, 9, (9000,)).float(),
    "like another": lambda: torch.randn_like(torch.zeros(80, 60)).half().float(),
    "by erfinv": lambda: by_erfinv(0.5),
    "by slices": by_slices,
    "by columns": by_columns,
    "by heads": by_heads,
    "time steps": time_steps,
    "positions": positions,
    "dirac": lambda: init.dirac_(torch.empty(16, 16, 3)),
    "triangular": lambda: torch.ones(60, 60).tril(),
    "a list of numbers": lambda: torch.tensor([[1.0, 2.0], [3.0, 4.0]]),
}


@pytest.mark.parametrize("name", LAYERS)
def test_default_initialization_of_a_layer_is_followed(name):
    found, which = worst(LAYERS[name])
    assert found < SIGMAS, which


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_of_nn_init_is_followed(name):
    def make():
        holder = Holder(torch.empty(300, 60))
        with torch.no_grad():
            FUNCTIONS[name](holder.weight)
        return holder

    found, which = worst(make)
    assert found < SIGMAS, which


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_an_expression_is_followed(name):
    found, which = worst(lambda: Holder(EXPRESSIONS[name]()))
    assert found < SIGMAS, which


def by_data():
    layer = nn.Linear(80, 60)
    layer.weight.data.normal_(0.0, 0.02)
    layer.weight.data = layer.weight.data * 3
    with torch.no_grad():
        layer.weight /= 2
        layer.bias.copy_(torch.full((60,), 0.5))
    return layer


def converted():
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 2, 64, batch_first=True), 2)
    return model.half().to("cpu").double()


def undrawn():
    layer = skip_init(nn.Linear, 80, 60)
    init.normal_(layer.weight, std=0.3)
    init.zeros_(layer.bias)
    return layer


def applied():
    def initialize(module):
        if isinstance(module, nn.Linear):
            init.trunc_normal_(module.weight, std=0.02)
            module.weight.data.div_(math.sqrt(8))
            module.bias.data.zero_()

    return nn.Sequential(nn.Linear(60, 50), nn.Sequential(nn.Linear(50, 60))).apply(initialize)


@pytest.mark.parametrize("make", [by_data, converted, undrawn, applied])
def test_a_habit_of_real_code_is_followed(make):
    found, which = worst(make)
    assert found < SIGMAS, which


def test_a_law_wrong_by_three_percent_is_caught():
    tensor = drawn(lambda: nn.Linear(300, 300))["weight"]
    known = followed(lambda: nn.Linear(300, 300))["weight"]
    assert disagreement(known, tensor) < SIGMAS
    wrong = type(known)(mean=known.mean, ms=known.ms * 1.03, how=known.how)
    assert disagreement(wrong, tensor) > SIGMAS


def test_what_was_done_is_described():
    def make():
        layer = nn.Linear(30, 20)
        init.normal_(layer.weight, std=0.02)
        layer.weight.data.mul_(0.25)
        return layer

    assert followed(make)["weight"].how == "normal(0, 0.02) then x 0.25"


GAPS = {
    "never initialized": lambda: torch.empty(5, 5),
    "in part never initialized": lambda: torch.cat([torch.empty(5, 5), torch.zeros(5, 5)]),
    "no moments": lambda: torch.empty(5, 5).cauchy_(),
    "not followed": lambda: torch.randn(5, 5) @ torch.randn(5, 5),
    "pattern": lambda: (lambda w: (w[::2].normal_(), w[1::3].zero_(), w)[-1])(torch.empty(2001).uniform_()),
}


@pytest.mark.parametrize("why", GAPS)
def test_what_cannot_be_followed_is_a_gap_and_not_a_guess(why):
    found = followed(lambda: Holder(GAPS[why]()))["weight"]
    assert (found.mean, found.ms, found.how) == (None, None, "")
    assert why in found.gap or why == "in part never initialized"


def test_deep_copies_are_known_to_be_copies():
    log = followed(lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 2, 64, batch_first=True), 3))
    clones = {name: each.clone_of for name, each in log.items() if each.clone_of}
    assert clones["layers.1.linear1.weight"] == clones["layers.2.linear1.weight"] == "layers.0.linear1.weight"
    assert not any(name.startswith("layers.0.") for name in clones)


def test_layers_drawn_one_by_one_are_no_copies():
    log = followed(lambda: nn.Sequential(*(nn.Linear(20, 20) for _ in range(3))))
    assert not any(each.clone_of for each in log.values())


def test_a_tied_weight_is_one_tensor_under_its_first_name():
    def make():
        model = nn.Sequential(nn.Embedding(30, 20), nn.Linear(20, 30, bias=False))
        model[1].weight = model[0].weight
        return model

    assert list(followed(make)) == ["0.weight"]


def test_a_model_larger_than_any_memory_is_built():
    built = build_without_weights(lambda: nn.Linear(10**7, 10**7))  # 400 TB
    assert built.log(built.result).parameters["weight"].ms == pytest.approx(1e-7 / 3)


@pytest.mark.parametrize(
    ("mean", "std", "low", "high"), [(1.0, 1.0, -1.0, 2.0), (-2.0, 0.5, -2.2, 4.0), (0.5, 2.0, 0.0, 1.0)]
)
def test_a_truncated_normal_has_the_moments_of_its_samples(mean: float, std: float, low: float, high: float):
    torch.manual_seed(0)
    samples = nn.init.trunc_normal_(torch.empty(200_000, dtype=torch.float64), mean, std, low, high)
    predicted = truncated_normal(mean, std, low, high)
    assert predicted.mean == pytest.approx(samples.mean().item(), abs=0.01)
    assert predicted.ms == pytest.approx(samples.square().mean().item(), rel=0.01)
