"""Layers whose values are not drawn yet: whoever builds the stack fills them, from its own generator."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.utils import skip_init

from leadline.errors import InputError


def make_linear(inputs: int, outputs: int, *, bias: bool) -> nn.Linear:
    """An `nn.Linear` on the default device, uninitialised."""
    _check_sizes(inputs, outputs)
    device = torch.get_default_device()
    layer: nn.Linear = skip_init(nn.Linear, inputs, outputs, bias=bias, device=device)  # type: ignore[no-untyped-call]
    return layer


def make_conv(inputs: int, outputs: int, kernel: int, *, stride: int = 1, bias: bool = True) -> nn.Conv2d:
    """An `nn.Conv2d` on the default device, uninitialised, padded so that stride 1 keeps the resolution."""
    _check_sizes(inputs, outputs)
    layer: nn.Conv2d = skip_init(  # type: ignore[no-untyped-call]
        nn.Conv2d,
        inputs,
        outputs,
        kernel,
        stride=stride,
        padding=kernel // 2,
        bias=bias,
        device=torch.get_default_device(),
    )
    return layer


def _check_sizes(inputs: int, outputs: int) -> None:
    if inputs < 1 or outputs < 1:
        raise InputError(
            expected="layers of 1 or more features (inputs, width, outputs, vocab)",
            got=f"a layer from {inputs} to {outputs}",
            fix="pass positive sizes",
        )
