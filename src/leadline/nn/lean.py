"""Linear maps that save memory: they store the source of their input and recompute the input in the backward pass.

Torch stores the input of every linear map for the gradient of its weight. If that input is a norm of the stream or the
inside of a feed-forward, it is cheap to recompute from tensors that are stored anyway. Outputs are allocated before
temporary tensors, so that the latter lie at the end of the heap and leave no hole in it.
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


class Recomputed(NamedTuple):
    """A tensor to compute as `make(x)`, which must be cheap, deterministic and differentiable.

    Other inputs of `make` (the weights of a norm) must not change before the backward pass.
    """

    make: Make
    x: Tensor


def lean_linear(layer: nn.Linear, fed: Tensor | Recomputed) -> Tensor:
    """`layer` of a tensor, or of a `Recomputed` one, of which only the source is stored."""
    make, x = fed if isinstance(fed, Recomputed) else (_identity, fed)
    if isinstance(fed, Tensor) or not _applies(x, layer):
        y: Tensor = layer(make(x))
        return y
    out = _allocate_output(x, layer)
    mapped: Tensor = _LeanLinear.apply(out, make, x, make(x), layer.weight, layer.bias)  # type: ignore[no-untyped-call]
    return mapped


def lean_feed_forward(fc1: nn.Linear, inner: Make, fc2: nn.Linear, fed: Tensor | Recomputed) -> Tensor:
    """`fc2(inner(fc1(fed)))`, which stores only the source of `fed`; `inner` has no parameters."""
    make, x = fed if isinstance(fed, Recomputed) else (_identity, fed)
    if not _applies(x, fc1, fc2):
        y: Tensor = fc2(inner(fc1(make(x))))
        return y
    weights = (fc1.weight, fc1.bias, fc2.weight, fc2.bias)
    out = _allocate_output(x, fc2)
    mapped: Tensor = _LeanFeedForward.apply(out, inner, make, x, make(x), *weights)  # type: ignore[no-untyped-call]
    return mapped


def _identity(x: Tensor) -> Tensor:
    return x


def _applies(x: Tensor, *layers: nn.Module) -> bool:
    """Whether memory can be saved: not without gradients, and not under `torch.compile`, which plans memory itself.

    A function mode (a tracer) and replaced or parametrized layers use the plain path.
    """
    if not torch.is_grad_enabled() or torch.compiler.is_compiling() or has_torch_function((x,)):
        return False
    return all(type(layer) is nn.Linear for layer in layers)


def _allocate_output(x: Tensor, layer: nn.Linear) -> Tensor | None:
    """An empty tensor for the layer's output; None under autocast, which chooses the dtype."""
    if torch.is_autocast_enabled(x.device.type) or layer.weight.dtype != x.dtype:
        return None
    return x.new_empty(*x.shape[:-1], layer.out_features)


class _LeanLinear(torch.autograd.Function):
    """`weight h + bias` for `h = make(x)`."""

    @staticmethod
    def forward(  # noqa: PLR0913  (autograd hands inputs over one by one)
        ctx: Any, out: Tensor | None, make: Make, x: Tensor, h: Tensor, weight: Tensor, bias: Tensor | None
    ) -> Tensor:
        ctx.make, ctx.autocast = make, _autocast_state(x)
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


class _LeanFeedForward(torch.autograd.Function):
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
        ctx.inner, ctx.make, ctx.autocast = inner, make, _autocast_state(x)
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


def _autocast_state(x: Tensor) -> dict[str, Any]:
    """The current state of autocast, which the backward pass restores."""
    device = x.device.type
    enabled, dtype = torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)
    return {"device_type": device, "dtype": dtype, "enabled": enabled}
