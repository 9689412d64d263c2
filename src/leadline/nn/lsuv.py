"""LSUV: layer by layer, scale each weight until its output on real data has unit variance."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Generator, Tensor, nn

TOLERANCE = 0.1  # accepted |variance - 1| (Mishkin and Matas 2015, arXiv 1511.06422, algorithm 1: Tol_var)
ATTEMPTS = 10  # at most this many rescalings a layer (the same algorithm: T_max)


class _Reached(Exception):  # noqa: N818  (a signal that ends the forward pass early, not an error)
    """The layer that was asked for has produced its output."""


@torch.no_grad()
def lsuv_(
    model: nn.Module, batch: Any, *, orthogonal: bool = True, generator: Generator | None = None
) -> dict[str, float]:
    r"""`model` in place, with unit output variance at every linear and convolution layer on `batch`.

    Every weight is filled orthogonally first (unless `orthogonal=False`), then $W \leftarrow
    W/\sqrt{\mathrm{Var}(y)}$ until $|\mathrm{Var}(y)-1| < 0.1$. Layers are taken in the order in which the
    forward pass reaches them; layers it does not reach keep their weights. A layer whose output does not vary
    (a zero input) is left as it is. Returns the variance reached, by layer name. `batch` is what the model is
    called with: a tensor, or a tuple of arguments. Mishkin and Matas 2015, arXiv 1511.06422, algorithm 1.
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
    seen: dict[nn.Module, None] = {}
    handles = [layer.register_forward_pre_hook(lambda module, _: seen.setdefault(module)) for layer in layers]
    try:
        model(*inputs)
    finally:
        for handle in handles:
            handle.remove()
    return list(seen)


def _scale_to_unit(model: nn.Module, layer: nn.Module, inputs: tuple[Any, ...]) -> float:
    variance = _output_variance(model, layer, inputs)
    for _ in range(ATTEMPTS):
        if variance == 0.0 or abs(variance - 1) < TOLERANCE:
            break
        layer.weight.div_(variance**0.5)  # type: ignore[operator]
        variance = _output_variance(model, layer, inputs)
    return variance


def _output_variance(model: nn.Module, layer: nn.Module, inputs: tuple[Any, ...]) -> float:
    found: list[float] = []

    def read(module: nn.Module, arguments: Any, output: Tensor) -> None:
        found.append(float(output.float().var()))
        raise _Reached

    handle = layer.register_forward_hook(read)
    try:
        model(*inputs)
    except _Reached:
        pass
    finally:
        handle.remove()
    return found[0]


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """Dropout off and batch statistics untouched inside; every module's own mode comes back after."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training
