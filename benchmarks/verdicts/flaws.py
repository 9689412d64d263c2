"""Initializations of the hidden layers, and edits that damage a model."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import cache

import torch
from torch import Tensor, nn

from leadline.nn import init as leadline_init
from leadline.nn.critical import CriticalPoint

Matrices = list[tuple[Tensor, Tensor | None]]
"""Weights of the hidden layers with their biases."""


def hidden_layers(model: nn.Module) -> Matrices:
    """Return linear and convolution layers except the last, which is the head."""
    layers = [m for m in model.modules() if isinstance(m, nn.Linear | nn.Conv2d)]
    return [(layer.weight, layer.bias) for layer in layers[:-1]]


def recurrent_matrices(model: nn.Module) -> Matrices:
    """Return the state-to-state matrices of recurrent cells; input matrices and biases keep their values."""
    return [(p, None) for name, p in model.named_parameters() if "weight_hh" in name]


@torch.no_grad()
def initialize_(matrices: Matrices, how: str, gain: float | None, activation: str) -> None:
    """Initialize the matrices by the scheme `how` and set biases to zero; "default" changes nothing."""
    if how == "default":
        return
    for weight, bias in matrices:
        INITS[how](weight, gain, activation)
        if bias is not None:
            bias.zero_()
            if how == "critical":
                bias.normal_(std=math.sqrt(critical_point(activation).bias_variance))


@cache
def critical_point(activation: str) -> CriticalPoint:
    """Return the critical point (edge of chaos) of the activation."""
    return leadline_init.critical(activation)


def _normal(variance: Callable[[int, int], float]) -> Callable[[Tensor, float | None, str], None]:
    def fill(weight: Tensor, gain: float | None, activation: str) -> None:
        weight.normal_(std=math.sqrt(variance(*leadline_init.fans(weight))))

    return fill


def _gain(weight: Tensor, gain: float | None, activation: str) -> None:
    weight.normal_(std=math.sqrt((gain or 1.0) / leadline_init.fans(weight)[0]))


def _critical(weight: Tensor, gain: float | None, activation: str) -> None:
    point = critical_point(activation)
    weight.normal_(std=math.sqrt(point.weight_variance / leadline_init.fans(weight)[0]))


def _orthogonal(weight: Tensor, gain: float | None, activation: str) -> None:
    nn.init.orthogonal_(weight, math.sqrt(gain or 1.0))


def _constant(weight: Tensor, gain: float | None, activation: str) -> None:
    weight.fill_((gain or 0.0) / leadline_init.fans(weight)[0])


def _identity(weight: Tensor, gain: float | None, activation: str) -> None:
    weight.copy_(torch.eye(*weight.shape))


INITS: dict[str, Callable[[Tensor, float | None, str], None]] = {
    "he": _normal(lambda fan_in, fan_out: 2 / fan_in),
    "lecun": _normal(lambda fan_in, fan_out: 1 / fan_in),
    "xavier": _normal(lambda fan_in, fan_out: 2 / (fan_in + fan_out)),
    "gain": _gain,
    "critical": _critical,
    "orthogonal": _orthogonal,
    "constant": _constant,
    "identity": _identity,
}


class OutputFunction(nn.Module):
    """A model with a function on its output."""

    def __init__(self, model: nn.Module, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.model, self.function = model, function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self.model(x))


@torch.no_grad()
def apply_flaw(model: nn.Module, flaw: str, size: float) -> nn.Module:
    """Return the model with the named flaw; `size` is its strength."""
    if flaw == "softmax-twice":
        return OutputFunction(model, lambda logits: logits.softmax(-1))
    if flaw == "relu-head":
        return OutputFunction(model, torch.relu)
    FLAWS[flaw](model, size)
    return model


def _none(model: nn.Module, size: float) -> None:
    pass


def _clone(model: nn.Module, size: float) -> None:
    """Give all hidden layers of one shape the weights of the first."""
    first: dict[tuple[str, torch.Size], Tensor] = {}
    for name, parameter in list(model.named_parameters())[:-2]:
        role = name.rpartition(".")[2], parameter.shape
        parameter.copy_(first.setdefault(role, parameter.clone()))


def _dead(model: nn.Module, size: float) -> None:
    """Set every hidden bias to -`size`."""
    for _, bias in hidden_layers(model):
        if bias is not None:
            bias.fill_(-size)


def _hot_attention(model: nn.Module, size: float) -> None:
    """Multiply queries and keys by `size`, and so the logits by `size` squared."""
    for weight in query_key_weights(model):
        weight.mul_(size)


def query_key_weights(model: nn.Module) -> Iterator[Tensor]:
    """Yield the query and key rows of every packed projection."""
    for name, parameter in model.named_parameters():
        if parameter.ndim == 2 and name.endswith(("in_proj_weight", "qkv.weight")):
            yield parameter[: 2 * parameter.shape[0] // 3]


def _embedding(model: nn.Module, size: float) -> None:
    """Multiply the embedding and the position parameters by `size`."""
    for name, parameter in model.named_parameters():
        if name in ("embed.weight", "embed.bias", "place", "embedding.weight"):
            parameter.mul_(size)


def _head(model: nn.Module, size: float) -> None:
    """Multiply the weight of the last layer by `size`."""
    [*_, last] = [m for m in model.modules() if isinstance(m, nn.Linear)]
    last.weight.mul_(size)


def _freeze(model: nn.Module, size: float) -> None:
    """Freeze everything except norms and biases."""
    for parameter in model.parameters():
        parameter.requires_grad_(parameter.ndim < 2)


FLAWS: dict[str, Callable[[nn.Module, float], None]] = {
    "none": _none,
    "cloned": _clone,
    "dead-bias": _dead,
    "hot-attention": _hot_attention,
    "embedding-scale": _embedding,
    "head-scale": _head,
    "frozen-matrices": _freeze,
}
