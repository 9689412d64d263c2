"""Initializers: variances as functions of (fan_in, fan_out, activation), the fills that use them, and LSUV."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

import torch
from torch import Generator, Tensor, nn

from leadline.errors import InputError
from leadline.nn.activations import Activation, gaussian_moments
from leadline.nn.critical import CriticalPoint, critical

# Cited: Mishkin and Matas 2015, arXiv 1511.06422, algorithm 1, Tol_var: accepted |variance - 1|.
MAX_VARIANCE_ERROR = 0.1
# Cited: the same algorithm, T_max: rescalings per layer.
MAX_RESCALINGS = 10


class _Reached(Exception):  # noqa: N818  (a signal that ends the forward pass early, not an error)
    """The layer of interest has produced its output."""


@torch.no_grad()
def lsuv_(
    model: nn.Module, batch: Any, *, orthogonal: bool = True, generator: Generator | None = None
) -> dict[str, float]:
    r"""Scale the weights in place, so that every linear and convolution layer has unit output variance on `batch`.

    Every weight is filled orthogonally first (unless `orthogonal=False`), then $W \leftarrow W/\sqrt{\mathrm{Var}(y)}$
    until $|\mathrm{Var}(y)-1| < 0.1$, where $W$ is the weight and $y$ the output of the layer. Layers are scaled in
    the order of the forward pass; layers that it does not reach keep their weights, and so does a layer whose output
    does not vary (a zero input). Returns the final variance by layer name. `batch` is the input of the model: a
    tensor, or a tuple of arguments. Mishkin and Matas 2015, arXiv 1511.06422, algorithm 1.
    """
    inputs = batch if isinstance(batch, tuple) else (batch,)
    layers = {module: name for name, module in model.named_modules() if _has_weight(module)}
    if orthogonal:
        for layer in layers:
            nn.init.orthogonal_(layer.weight, generator=generator)
    with _evaluating(model):
        return {
            layers[layer]: _scale_to_unit(model, layer, inputs) for layer in _in_order(model, layers, inputs)
        }


def _has_weight(module: nn.Module) -> bool:
    return isinstance(module, nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d)


def _in_order(model: nn.Module, layers: dict[nn.Module, str], inputs: tuple[Any, ...]) -> list[nn.Module]:
    """The layers in the order in which a forward pass calls them, each once."""
    order: dict[nn.Module, None] = {}
    handles = [
        layer.register_forward_pre_hook(lambda module, _: order.setdefault(module)) for layer in layers
    ]
    try:
        model(*inputs)
    finally:
        for handle in handles:
            handle.remove()
    return list(order)


def _scale_to_unit(model: nn.Module, layer: nn.Module, inputs: tuple[Any, ...]) -> float:
    variance = _output_variance(model, layer, inputs)
    for _ in range(MAX_RESCALINGS):
        if variance == 0.0 or abs(variance - 1) < MAX_VARIANCE_ERROR:
            break
        layer.weight.div_(variance**0.5)  # type: ignore[operator]
        variance = _output_variance(model, layer, inputs)
    return variance


def _output_variance(model: nn.Module, layer: nn.Module, inputs: tuple[Any, ...]) -> float:
    variances: list[float] = []

    def read(module: nn.Module, arguments: Any, output: Tensor) -> None:
        variances.append(float(output.float().var()))
        raise _Reached

    handle = layer.register_forward_hook(read)
    try:
        model(*inputs)
    except _Reached:
        pass
    finally:
        handle.remove()
    return variances[0]


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode, without dropout and changes of batch statistics; restores the mode of every module."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


# Variances as functions of (fan_in, fan_out, activation), and the fills that use them.
#
# Every fill works in place under `no_grad`, returns its tensor and accepts a `torch.Generator`. Call it once per layer:
# layers that start as copies of each other add up coherently (the second moment grows like depth squared).

__all__ = [
    "VARIANCES",
    "CriticalPoint",
    "backward",
    "critical",
    "delta_orthogonal_",
    "fans",
    "gaussian_moments",
    "he",
    "lecun",
    "lsuv_",
    "normal_",
    "orthogonal_",
    "truncated_normal_",
    "uniform_",
    "xavier",
]

# Derived: variance of N(0,1) cut at 2: 1 - 4 pdf(2) / (2 cdf(2) - 1).
TRUNCATED_VARIANCE = 0.7737413
# Derived: where truncated_normal_ cuts, in standard deviations of the uncut normal; TRUNCATED_VARIANCE depends on it.
TRUNCATION = 2.0

VarianceRule = Callable[[int, int, str | Activation], float]


def fans(weight: Tensor, *, packed: int = 1) -> tuple[int, int]:
    """(fan_in, fan_out) of a linear or convolution weight; `packed` matrices stacked on dim 0 count one by one.

    A packed QKV of shape (3d, d) with `packed=3` has fan_out d; Xavier on the packed shape would give it half the
    variance.
    """
    if weight.ndim < 2:
        raise InputError(
            expected="a weight of 2 or more dimensions (out, in, ...)",
            got=f"shape {tuple(weight.shape)}",
            fix="initialize vectors (biases, norm gains) with constants",
        )
    kernel = math.prod(weight.shape[2:])
    return weight.shape[1] * kernel, weight.shape[0] // packed * kernel


def lecun(fan_in: int, fan_out: int, activation: str | Activation = "linear") -> float:
    r"""$1/n$, where $n$ is the fan-in: keeps the second moment of any input. LeCun et al. 1998, Efficient BackProp."""
    return 1 / fan_in


def he(fan_in: int, fan_out: int, activation: str | Activation = "relu") -> float:
    r"""$1/(n\,E[\phi^2])$: a linear map after $\phi$ of a unit Gaussian has a unit second moment; for ReLU $2/n$.

    Here $n$ is the fan-in and $\phi$ the activation.

    He et al. 2015, arXiv 1502.01852, equation 10 for ReLU; here for every activation (GELU: $2.352/n$).
    """
    return 1 / (fan_in * gaussian_moments(activation).square)


def backward(fan_in: int, fan_out: int, activation: str | Activation = "linear") -> float:
    r"""$1/(m\,E[\phi'^2])$, where $m$ is the fan-out: keeps the second moment of the gradient; linear: $1/m$."""
    return 1 / (fan_out * gaussian_moments(activation).slope_square)


def xavier(fan_in: int, fan_out: int, activation: str | Activation = "linear") -> float:
    r"""$2/(n+m)$ for fan-in $n$ and fan-out $m$: gain $2n/(n+m)$ forward and $2m/(n+m)$ backward, both 1 if $n=m$.

    Glorot and Bengio 2010.
    """
    return 2 / (fan_in + fan_out)


VARIANCES: Mapping[str, VarianceRule] = MappingProxyType(
    {"lecun": lecun, "he": he, "backward": backward, "xavier": xavier}
)


@torch.no_grad()
def normal_(weight: Tensor, variance: float, *, generator: Generator | None = None) -> Tensor:
    """Fill `weight` in place from N(0, variance)."""
    return weight.normal_(0.0, math.sqrt(variance), generator=generator)


@torch.no_grad()
def uniform_(weight: Tensor, variance: float, *, generator: Generator | None = None) -> Tensor:
    r"""Fill `weight` in place uniformly from $\pm\sqrt{3\,\mathrm{variance}}$."""
    limit = math.sqrt(3 * variance)
    return weight.uniform_(-limit, limit, generator=generator)


@torch.no_grad()
def truncated_normal_(weight: Tensor, variance: float, *, generator: Generator | None = None) -> Tensor:
    r"""Fill `weight` in place from a normal cut at two standard deviations, whose variance after the cut is `variance`.

    The cut at $2\sigma$ leaves a variance of $0.7737\,\sigma^2$, so the uncut normal has $\sigma^2 = $ variance
    $/0.7737$.
    """
    std = math.sqrt(variance / TRUNCATED_VARIANCE)
    return torch.nn.init.trunc_normal_(
        weight, 0.0, std, -TRUNCATION * std, TRUNCATION * std, generator=generator
    )


@torch.no_grad()
def orthogonal_(weight: Tensor, gain: float = 1.0, *, generator: Generator | None = None) -> Tensor:
    """Fill `weight`, viewed as (out, in * kernel), in place with orthonormal rows or columns times `gain`."""
    return torch.nn.init.orthogonal_(weight, gain, generator=generator)


@torch.no_grad()
def delta_orthogonal_(weight: Tensor, gain: float = 1.0, *, generator: Generator | None = None) -> Tensor:
    """Fill a convolution `weight` in place with zeros, except for an orthogonal center tap times `gain`.

    This keeps the norm of every signal exactly, and that of gradients too if out = in (Xiao et al. 2018, arXiv
    1806.05393). With more inputs than outputs no map keeps all norms, so such a weight is refused.
    """
    outputs, inputs, *kernel = weight.shape
    if outputs < inputs or not kernel:
        raise InputError(
            expected="a convolution weight (out, in, kernel...) with out >= in",
            got=f"shape {tuple(weight.shape)}",
            fix="use orthogonal_ for matrices and for layers that narrow",
        )
    weight.zero_()
    center = weight
    for size in reversed(kernel):
        center = center[..., size // 2]
    center.copy_(orthogonal_(torch.empty_like(center), gain, generator=generator))
    return weight
