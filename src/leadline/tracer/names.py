"""The index of a model: its modules, parameters and buffers, each object once, with all its names."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar, cast

from torch import Tensor, nn

T = TypeVar("T")


@dataclass(
    slots=True, kw_only=True
)  # not frozen: there are thousands, and a frozen one takes three times as long
class Named(Generic[T]):
    """A module, parameter or buffer with all its paths in the model; the first path is its name."""

    item: T
    names: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelIndex:
    """Modules, parameters and buffers by `id`: a tied weight or a shared module is one entry with several names."""

    modules: dict[int, Named[nn.Module]]
    parameters: dict[int, Named[nn.Parameter]]
    buffers: dict[int, Named[Tensor]]


def index_model(model: nn.Module) -> ModelIndex:
    """Return the index of a model. It is built without recursion: PyTorch's own walk fails some 500 wrappers deep."""
    model_index = ModelIndex(modules={}, parameters={}, buffers={})
    for path, module in _walk(model, model_index.modules):
        for name, parameter in module._parameters.items():
            if parameter is not None:
                _add(model_index.parameters, parameter, join(path, name))
        for name, buffer in module._buffers.items():
            if buffer is not None:
                _add(model_index.buffers, buffer, join(path, name))
    return model_index


def join(path: str, name: str) -> str:
    """Return the path of the child `name` of the module at `path`; the model itself has the path ""."""
    return f"{path}.{name}" if path else name


def without_compile(module: nn.Module) -> nn.Module:
    """Return the module inside the wrappers of torch.compile.

    The wrapper is recognized by its name, because importing its class would import dynamo, which is slow.
    """
    while type(module).__name__ == "OptimizedModule":
        module = cast(nn.Module, module._orig_mod)
    return module


def _walk(model: nn.Module, modules: dict[int, Named[nn.Module]]) -> Iterator[tuple[str, nn.Module]]:
    todo = [("", model)]
    while todo:
        path, module = todo.pop()
        module = without_compile(module)  # the user wrote torch.compile(layer) and knows it as the layer
        if not _add(modules, module, path):
            continue
        yield path, module
        todo += [
            (join(path, name), child)
            for name, child in reversed(list(module._modules.items()))
            if child is not None
        ]


def _add(entries: dict[int, Named[T]], item: T, name: str) -> bool:
    """Add `item` under `name`; return whether it is new."""
    if id(item) in entries:
        names = entries[id(item)].names
        if name not in names:
            names.append(name)
        return False
    entries[id(item)] = Named(item=item, names=[name])
    return True
