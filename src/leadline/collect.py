"""Finding all rules, ops or fixes by looking into their folder: adding one is adding a file, and nothing else."""

from __future__ import annotations

import pkgutil
from importlib import import_module
from types import ModuleType
from typing import TypeVar

T = TypeVar("T")


def collect(package: ModuleType, kind: type[T]) -> tuple[T, ...]:
    """Every instance of `kind` that a module of `package` defines, in order of module and definition.

    An object that several modules import counts once.
    """
    found: dict[int, T] = {}
    for info in pkgutil.iter_modules(package.__path__, prefix=f"{package.__name__}."):
        for item in vars(import_module(info.name)).values():
            if isinstance(item, kind):
                found.setdefault(id(item), item)
    return tuple(found.values())
