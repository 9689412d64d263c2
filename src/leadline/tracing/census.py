"""Names for everything in a model: modules, parameters and buffers, each object once, with all its names."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from torch import Tensor, nn

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Named(Generic[T]):
    """An object of the model and the paths under which it is found, the first one first."""

    item: T
    names: list[str]
    owner: nn.Module


@dataclass(frozen=True, slots=True, kw_only=True)
class Census:
    """Modules, parameters and buffers by identity: a tied weight or a shared module is one entry."""

    modules: dict[int, Named[nn.Module]]
    parameters: dict[int, Named[nn.Parameter]]
    buffers: dict[int, Named[Tensor]]

    @property
    def nesting(self) -> int:
        """How many modules deep the model is nested."""
        return max(named.names[0].count(".") for named in self.modules.values()) + 1


def take_census(model: nn.Module) -> Census:
    """Walk the model without recursion: PyTorch's own walk fails some 500 wrappers deep."""
    census = Census(modules={}, parameters={}, buffers={})
    for path, module in _walk(model, census.modules):
        for own, found in ((module._parameters, census.parameters), (module._buffers, census.buffers)):
            for name, item in own.items():
                if item is not None:
                    _enter(found, item, f"{path}.{name}" if path else name, module)
    return census


def _walk(model: nn.Module, modules: dict[int, Named[nn.Module]]) -> Iterator[tuple[str, nn.Module]]:
    todo: list[tuple[str, nn.Module, nn.Module]] = [("", model, model)]
    while todo:
        path, module, parent = todo.pop()
        while is_compiled(module):  # the user wrote torch.compile(layer) and knows it as the layer
            module = module._orig_mod
        if not _enter(modules, module, path, parent):
            continue
        yield path, module
        for name, child in reversed(list(module._modules.items())):
            if child is not None:
                todo.append((f"{path}.{name}" if path else name, child, module))


def is_compiled(module: nn.Module) -> bool:
    """The wrapper that torch.compile puts around a module; its class lives in dynamo, which is slow to import."""
    return type(module).__name__ == "OptimizedModule"


def _enter(found: dict[int, Named[T]], item: T, name: str, owner: nn.Module) -> bool:
    """Note `item` under `name`; True if it is new."""
    if id(item) in found:
        names = found[id(item)].names
        if name not in names:
            names.append(name)
        return False
    found[id(item)] = Named(item=item, names=[name], owner=owner)
    return True
