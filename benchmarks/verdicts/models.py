"""The networks of the benchmark: what leadline.nn does not have, and heads that fit them to the data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leadline.nn import SCHEMES, Encoder, Options, Scheme
from leadline.nn.depth_laws import deepnorm_gain, deepnorm_skip
from leadline.nn.scheme import Place

ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "relu": nn.ReLU,
    "tanh": nn.Tanh,
    "sigmoid": nn.Sigmoid,
    "gelu": nn.GELU,
    "elu": nn.ELU,
    "leaky_relu": nn.LeakyReLU,
    "silu": nn.SiLU,
}
# Heuristic: the smallest width, 16, leaves four channels per head.
HEADS = 4
# Derived: an image of a digit has 8 rows of 8 pixels.
SIDE = 8


def unit_scale(place: Place) -> float:
    return 1.0


def inverse_deepnorm_gain(place: Place) -> float:
    return 1 / deepnorm_gain(place)


OWN_SCHEMES: dict[str, Scheme] = {
    "unscaled": replace(SCHEMES["pre"], name="unscaled", norms=(), final_norm=False),
    # DeepNorm with alpha on the branch and the inverse of beta: both factors the wrong way round.
    "deepnorm-wrong-way": replace(
        SCHEMES["deepnorm"],
        name="deepnorm-wrong-way",
        skip=unit_scale,
        branch=deepnorm_skip,
        gain=inverse_deepnorm_gain,
    ),
}


def scheme_of(name: str) -> Scheme:
    """A row of leadline.nn, or one of the benchmark's own."""
    return OWN_SCHEMES[name] if name in OWN_SCHEMES else SCHEMES[name]


class CoherentBlock(nn.Module):
    """x + relu(Wx): a branch that ends in its activation, so that all branches push the stream one way."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        return x + F.relu(self.layer(x))


def plain_mlp(
    inputs: int, width: int, depth: int, outputs: int, make: Callable[[int, int], nn.Module]
) -> nn.Module:
    """`depth` hidden layers made by `make(fan_in, fan_out)`, and a linear head."""
    hidden = [make(inputs if i == 0 else width, width) for i in range(depth)]
    return nn.Sequential(*hidden, nn.Linear(width, outputs))


def dense_layer(activation: str, norm: str) -> Callable[[int, int], nn.Module]:
    """Linear, norm if requested, activation."""
    norms: dict[str, Callable[[int], nn.Module]] = {"batch": nn.BatchNorm1d, "layer": nn.LayerNorm}

    def make(fan_in: int, fan_out: int) -> nn.Module:
        middle = [norms[norm](fan_out)] if norm != "none" else []
        return nn.Sequential(nn.Linear(fan_in, fan_out), *middle, ACTIVATIONS[activation]())

    return make


def coherent_layer(fan_in: int, fan_out: int) -> nn.Module:
    """A coherent block where the width allows one, a plain layer where it changes."""
    linear = nn.Linear(fan_in, fan_out)
    return CoherentBlock(linear) if fan_in == fan_out else nn.Sequential(linear, nn.ReLU())


def conv_layer(activation: str, norm: str) -> Callable[[int, int], nn.Module]:
    """A 3x3 convolution, norm if requested, activation."""
    norms: dict[str, Callable[[int], nn.Module]] = {
        "batch": nn.BatchNorm2d,
        "layer": lambda width: nn.GroupNorm(1, width),
    }

    def make(fan_in: int, fan_out: int) -> nn.Module:
        middle = [norms[norm](fan_out)] if norm != "none" else []
        return nn.Sequential(nn.Conv2d(fan_in, fan_out, 3, padding=1), *middle, ACTIVATIONS[activation]())

    return make


def plain_conv(width: int, depth: int, outputs: int, make: Callable[[int, int], nn.Module]) -> nn.Module:
    """`depth` convolutions at full resolution, then one value per channel and quarter of the image."""
    hidden = [make(1 if i == 0 else width, width) for i in range(depth)]
    head = [nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(4 * width, outputs)]
    return nn.Sequential(nn.Unflatten(1, (1, SIDE, SIDE)), *hidden, *head)


class RowEncoder(nn.Module):
    """A Transformer encoder that reads a digit's rows as tokens and classifies their mean."""

    def __init__(self, width: int, body: nn.Module, outputs: int) -> None:
        super().__init__()
        self.embed = nn.Linear(SIDE, width)
        self.place = nn.Parameter(torch.randn(SIDE, width) * 0.5)
        self.body = body
        self.head = nn.Linear(width, outputs)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.head(self.body(self.embed(x.unflatten(1, (SIDE, SIDE))) + self.place).mean(1))
        return y


def torch_encoder(width: int, depth: int, *, pre: bool) -> nn.Module:
    """PyTorch's own encoder: its layers are copies of one, all with the same initial weights."""
    layer = nn.TransformerEncoderLayer(
        width, HEADS, 4 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=pre
    )
    return nn.TransformerEncoder(
        layer, depth, nn.LayerNorm(width) if pre else None, enable_nested_tensor=False
    )


def leadline_encoder(width: int, depth: int, scheme: str, generator: torch.Generator) -> nn.Module:
    """leadline.nn's encoder under the scheme."""
    return Encoder(
        width, HEADS, depth, scheme=scheme_of(scheme), options=Options(positions="none"), generator=generator
    )


class TorchLanguageModel(nn.Module):
    """A causal language model of PyTorch's own layers."""

    def __init__(self, vocab: int, width: int, length: int, body: nn.Module) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab, width)
        self.place = nn.Parameter(torch.randn(length, width) * 0.5)
        self.body = body
        self.head = nn.Linear(width, vocab)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(length), persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens) + self.place
        y: Tensor = self.head(self.body(x, mask=self.mask.to(x.dtype), is_causal=True))
        return y
