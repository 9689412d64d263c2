r"""Activations with their derivatives, as the hand-written backward pass needs them.

A slope turns the gradient of $y = \phi(z)$ into that of $z$, in place: $g \leftarrow g\,\phi'(z)$. It may use $z$, $y$
or both, whichever is cheapest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch
import torch.nn.functional as F
from torch import Tensor

aten = torch.ops.aten


@dataclass(frozen=True, slots=True, kw_only=True)
class Slope:
    """`forward`: z to y. `backward`: (gradient of y, z, y) to gradient of z, written over the first."""

    forward: Callable[[Tensor], Tensor]
    backward: Callable[[Tensor, Tensor, Tensor], Tensor]
    over: Callable[[Tensor], Tensor] | None = None
    """`forward` written over z, where the way back does not need it: what is not kept need not be fetched."""


SLOPES: Mapping[str, Slope] = MappingProxyType(
    {
        "linear": Slope(forward=lambda z: z, backward=lambda g, z, y: g),
        "relu": Slope(
            forward=torch.relu,
            over=torch.relu_,
            backward=lambda g, z, y: aten.threshold_backward.grad_input(g, y, 0, grad_input=g),
        ),
        "tanh": Slope(
            forward=torch.tanh,
            over=torch.tanh_,
            backward=lambda g, z, y: aten.tanh_backward.grad_input(g, y, grad_input=g),
        ),
        "sigmoid": Slope(
            forward=torch.sigmoid,
            over=torch.sigmoid_,
            backward=lambda g, z, y: aten.sigmoid_backward.grad_input(g, y, grad_input=g),
        ),
        "gelu": Slope(
            forward=F.gelu, backward=lambda g, z, y: aten.gelu_backward.grad_input(g, z, grad_input=g)
        ),
        "silu": Slope(
            forward=F.silu, backward=lambda g, z, y: aten.silu_backward.grad_input(g, z, grad_input=g)
        ),
    }
)
