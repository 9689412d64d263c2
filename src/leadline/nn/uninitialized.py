"""Layers without initial values, which the builder of a stack fills from its own generator."""

from __future__ import annotations

from torch import nn

from leadline.errors import InputError


def make_linear(inputs: int, outputs: int, *, bias: bool) -> nn.Linear:
    """An `nn.Linear` on the default device, uninitialized."""
    _check_sizes(inputs, outputs)
    layer: nn.Linear = _UninitializedLinear(inputs, outputs, bias=bias)
    layer.__class__ = nn.Linear
    return layer


def make_conv(inputs: int, outputs: int, kernel: int, *, stride: int = 1, bias: bool = True) -> nn.Conv2d:
    """An `nn.Conv2d` on the default device, uninitialized, padded so that stride 1 keeps the resolution."""
    _check_sizes(inputs, outputs)
    layer: nn.Conv2d = _UninitializedConv2d(
        inputs, outputs, kernel, stride=stride, padding=kernel // 2, bias=bias
    )
    layer.__class__ = nn.Conv2d
    return layer


class _UninitializedLinear(nn.Linear):
    """A linear layer whose constructor draws no weights; `torch.nn.utils.skip_init` would build every layer twice."""

    def reset_parameters(self) -> None:
        """Keep the memory as it was allocated."""


class _UninitializedConv2d(nn.Conv2d):
    """A convolution whose constructor draws no weights."""

    def reset_parameters(self) -> None:
        """Keep the memory as it was allocated."""


def _check_sizes(inputs: int, outputs: int) -> None:
    if inputs < 1 or outputs < 1:
        raise InputError(
            expected="layers of 1 or more features (inputs, width, outputs, vocab)",
            got=f"a layer from {inputs} to {outputs}",
            fix="pass positive sizes",
        )
