"""Lean memory: linear maps that keep where their input came from and make it again going backward.

Torch keeps the input of every linear map for the gradient of its weight. Where that input is a norm of the stream
or the inside of a feed-forward, it is cheap to make again from what is kept anyway. Outputs are allocated before
what is thrown away, so that the latter lies at the end of the heap and leaves no hole in it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx, once_differentiable
from torch.overrides import has_torch_function

Make = Callable[[Tensor], Tensor]


class Remade(NamedTuple):
    """A tensor that is not made yet: `make(x)`, cheap, deterministic, and differentiable by torch as usual.

    What `make` reads besides `x` (the weights of a norm) must not change before the backward pass.
    """

    make: Make
    x: Tensor


def lean_linear(layer: nn.Linear, fed: Tensor | Remade) -> Tensor:
    """`layer` of a tensor as usual, or of one that is `Remade`, of which only the source is kept."""
    make, x = fed if isinstance(fed, Remade) else (_itself, fed)
    if isinstance(fed, Tensor) or not _applies(x, layer):
        y: Tensor = layer(make(x))
        return y
    out = _room(x, layer)
    mapped: Tensor = _Linear.apply(out, make, x, make(x), layer.weight, layer.bias)  # type: ignore[no-untyped-call]
    return mapped


def lean_feed_forward(fc1: nn.Linear, inner: Make, fc2: nn.Linear, fed: Tensor | Remade) -> Tensor:
    """`fc2(inner(fc1(fed)))`, of which only the source of `fed` is kept; `inner` has no parameters."""
    make, x = fed if isinstance(fed, Remade) else (_itself, fed)
    if not _applies(x, fc1, fc2):
        y: Tensor = fc2(inner(fc1(make(x))))
        return y
    weights = (fc1.weight, fc1.bias, fc2.weight, fc2.bias)
    out = _room(x, fc2)
    mapped: Tensor = _FeedForward.apply(out, inner, make, x, make(x), *weights)  # type: ignore[no-untyped-call]
    return mapped


def _itself(x: Tensor) -> Tensor:
    return x


def _applies(x: Tensor, *layers: nn.Module) -> bool:
    """Whether there is anything to save: not without gradients, nor under `torch.compile`, which plans by itself.

    A function mode (a tracer) sees the plain path, and so do layers that somebody has replaced or parametrised.
    """
    if not torch.is_grad_enabled() or torch.compiler.is_compiling() or has_torch_function((x,)):
        return False
    return all(type(layer) is nn.Linear for layer in layers)


def _room(x: Tensor, layer: nn.Linear) -> Tensor | None:
    """An empty tensor for the layer's output; None under autocast, which decides on the type itself."""
    if torch.is_autocast_enabled(x.device.type) or layer.weight.dtype != x.dtype:
        return None
    return x.new_empty(*x.shape[:-1], layer.out_features)


class _Linear(torch.autograd.Function):
    """`weight h + bias` for `h = make(x)`."""

    @staticmethod
    def forward(  # noqa: PLR0913  (autograd hands inputs over one by one)
        ctx: Any, out: Tensor | None, make: Make, x: Tensor, h: Tensor, weight: Tensor, bias: Tensor | None
    ) -> Tensor:
        ctx.make, ctx.autocast = make, _autocast_now(x)
        ctx.save_for_backward(x, weight)
        return _map_into(ctx, out, h, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        with torch.no_grad(), torch.autocast(**ctx.autocast):
            g = grad.flatten(0, -2)
            grad_weight = g.t() @ ctx.make(x).flatten(0, -2)
            grad_h = (g @ weight).view(x.shape)
        return None, None, None, grad_h, grad_weight, g.sum(0) if ctx.needs_input_grad[5] else None


class _FeedForward(torch.autograd.Function):
    """`weight2 inner(weight1 h + bias1) + bias2` for `h = make(x)`."""

    @staticmethod
    def forward(  # noqa: PLR0913  (autograd hands inputs over one by one)
        ctx: Any,
        out: Tensor | None,
        inner: Make,
        make: Make,
        x: Tensor,
        h: Tensor,
        weight1: Tensor,
        bias1: Tensor | None,
        weight2: Tensor,
        bias2: Tensor | None,
    ) -> Tensor:
        ctx.inner, ctx.make, ctx.autocast = inner, make, _autocast_now(x)
        ctx.save_for_backward(x, weight1, bias1, weight2)
        return _map_into(ctx, out, inner(F.linear(h, weight1, bias1)), weight2, bias2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight1, bias1, weight2 = ctx.saved_tensors
        with torch.no_grad(), torch.autocast(**ctx.autocast):
            g, h = grad.flatten(0, -2), ctx.make(x).flatten(0, -2)
            z = F.linear(h, weight1, bias1).requires_grad_()
            with torch.enable_grad():
                a = ctx.inner(z)
            grad_weight2 = g.t() @ a.detach()
            (grad_z,) = torch.autograd.grad(a, z, g @ weight2)
            grad_weight1 = grad_z.t() @ h
            grad_h = (grad_z @ weight1).view(x.shape)
        grad_bias1 = grad_z.sum(0) if ctx.needs_input_grad[6] else None
        grad_bias2 = g.sum(0) if ctx.needs_input_grad[8] else None
        return None, None, None, None, grad_h, grad_weight1, grad_bias1, grad_weight2, grad_bias2


def _map_into(ctx: FunctionCtx, out: Tensor | None, h: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The linear map of `h`, written into `out` if there is one."""
    if out is None:
        return F.linear(h, weight, bias)
    rows, target = h.flatten(0, -2), out.view(-1, out.shape[-1])
    if bias is None:
        torch.mm(rows, weight.t(), out=target)
    else:
        torch.addmm(bias, rows, weight.t(), out=target)
    ctx.mark_dirty(out)
    return out


def _autocast_now(x: Tensor) -> dict[str, Any]:
    """The state of autocast, for the backward pass, which runs outside of it."""
    device = x.device.type
    enabled, dtype = torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)
    return {"device_type": device, "dtype": dtype, "enabled": enabled}
