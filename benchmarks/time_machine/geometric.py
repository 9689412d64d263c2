"""Layers of torch_geometric, also of releases that need compiled packages which no one builds for this torch.

Before 2.3, torch_geometric imported torch_scatter and torch_sparse. The layers that are checked here need one function
of them, which torch itself has by now. So only the files of the wanted layer are loaded, beside a stand-in for both.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

PACKAGES = (
    "torch_geometric",
    *(f"torch_geometric.{name}" for name in ("data", "nn", "nn.conv", "nn.dense", "utils")),
)
REEXPORTED = {
    "torch_geometric.utils": {
        "softmax": ("softmax",),
        "loop": ("add_self_loops", "remove_self_loops"),
    },
    "torch_geometric.nn.dense": {"linear": ("Linear",)},
    "torch_geometric.nn.conv": {"message_passing": ("MessagePassing",)},
}
"""By package, by file: the names that the files of layers import from the package."""


@cache
def layer(name: str, file: str) -> Any:
    """The class of a layer, which is in `torch_geometric/nn/conv/FILE.py`."""
    try:
        return getattr(importlib.import_module("torch_geometric.nn"), name)
    except ImportError:
        _replace_packages()
    return getattr(importlib.import_module(f"torch_geometric.nn.conv.{file}"), name)


def _replace_packages() -> None:
    """Put empty packages and the stand-ins where the wheel's own files look for them."""
    for each in [name for name in sys.modules if name.partition(".")[0] == "torch_geometric"]:
        del sys.modules[each]
    spec = importlib.util.find_spec("torch_geometric")
    if spec is None or spec.origin is None:
        raise ImportError("torch_geometric is not installed")
    root = Path(spec.origin).parent.parent
    torch.jit.script = lambda function, *_, **__: function  # the stand-ins are plain Python
    sys.modules["torch_scatter"] = _module(
        "torch_scatter", scatter=scatter, scatter_add=scatter, gather_csr=_missing, segment_csr=_missing
    )
    sys.modules["torch_sparse"] = _module(
        "torch_sparse", SparseTensor=type("SparseTensor", (), {}), set_diag=_missing
    )
    for name in PACKAGES:
        package = _module(name)
        package.__path__ = [str(root / name.replace(".", "/"))]
        sys.modules[name] = package
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], child, package)
    for name, files in REEXPORTED.items():
        for file, exported in files.items():
            if (root / name.replace(".", "/") / f"{file}.py").exists():
                module = importlib.import_module(f"{name}.{file}")
                vars(sys.modules[name]).update({each: getattr(module, each) for each in exported})


def _module(name: str, **contents: Any) -> ModuleType:
    module = ModuleType(name)
    vars(module).update(contents)
    return module


def _missing(*_: Any, **__: Any) -> Any:
    raise NotImplementedError("only dense edges are supported here")


def scatter(
    src: Tensor,
    index: Tensor,
    dim: int = -1,
    out: Tensor | None = None,
    dim_size: int | None = None,
    reduce: str = "sum",
) -> Tensor:
    """What `torch_scatter.scatter` returns: the entries of `src`, reduced by their index along one axis."""
    dim = dim % src.dim()
    shape = [1] * src.dim()
    shape[dim] = -1
    places = index.view(shape).expand_as(src) if index.dim() == 1 else index
    size = list(src.shape)
    size[dim] = dim_size if dim_size is not None else int(index.max()) + 1
    if reduce in ("sum", "add"):  # its backward pass does not need the result, which layers change in place
        return src.new_zeros(size).scatter_add(dim, places, src)
    kind = {"mean": "mean", "max": "amax", "min": "amin"}[reduce]
    return src.new_zeros(size).scatter_reduce(dim, places, src, kind, include_self=False)
