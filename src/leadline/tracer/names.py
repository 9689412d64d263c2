"""Names for everything in a model: modules, parameters and buffers, each object once, with all its names."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar, cast

from torch import Tensor, nn

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Named(Generic[T]):
    """An object of the model and the paths under which it is found, the first one first."""

    item: T
    names: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelIndex:
    """Modules, parameters and buffers by identity: a tied weight or a shared module is one entry."""

    modules: dict[int, Named[nn.Module]]
    parameters: dict[int, Named[nn.Parameter]]
    buffers: dict[int, Named[Tensor]]


def index_model(model: nn.Module) -> ModelIndex:
    """Walk the model without recursion: PyTorch's own walk fails some 500 wrappers deep."""
    model_index = ModelIndex(modules={}, parameters={}, buffers={})
    for path, module in _walk(model, model_index.modules):
        for name, parameter in module._parameters.items():
            if parameter is not None:
                _enter(model_index.parameters, parameter, join(path, name))
        for name, buffer in module._buffers.items():
            if buffer is not None:
                _enter(model_index.buffers, buffer, join(path, name))
    return model_index


def join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _walk(model: nn.Module, modules: dict[int, Named[nn.Module]]) -> Iterator[tuple[str, nn.Module]]:
    todo = [("", model)]
    while todo:
        path, module = todo.pop()
        module = without_compile(module)  # the user wrote torch.compile(layer) and knows it as the layer
        if not _enter(modules, module, path):
            continue
        yield path, module
        todo += [
            (join(path, name), child)
            for name, child in reversed(list(module._modules.items()))
            if child is not None
        ]


def without_compile(module: nn.Module) -> nn.Module:
    """The module inside torch.compile's wrapper, whose class lives in dynamo and is slow to import."""
    while type(module).__name__ == "OptimizedModule":
        module = cast(nn.Module, module._orig_mod)
    return module


def _enter(found: dict[int, Named[T]], item: T, name: str) -> bool:
    """Note `item` under `name`; True if it is new."""
    if id(item) in found:
        names = found[id(item)].names
        if name not in names:
            names.append(name)
        return False
    found[id(item)] = Named(item=item, names=[name])
    return True
