"""Collection of extensions from their folder: adding a check, an op or a fix means adding a file."""

from __future__ import annotations

import pkgutil
from importlib import import_module
from types import ModuleType
from typing import TypeVar

T = TypeVar("T")


def collect(package: ModuleType, kind: type[T]) -> tuple[T, ...]:
    """Return every instance of `kind` defined in a module of `package`, in order of module and definition.

    An object that several modules import counts once.
    """
    instances: dict[int, T] = {}
    for info in pkgutil.iter_modules(package.__path__, prefix=f"{package.__name__}."):
        for item in vars(import_module(info.name)).values():
            if isinstance(item, kind):
                instances.setdefault(id(item), item)
    return tuple(instances.values())
