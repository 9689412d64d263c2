"""All architectures by name. The prefix of a name selects the module; missing packages have no architectures."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Collection
from functools import cache

from benchmarks.zoo.architecture import Architecture
from benchmarks.zoo.vision_ops import declare_vision_ops

SOURCES = {  # prefix of the names: module in this folder, package that it needs
    "torch": ("torch_modules", "torch"),
    "diffusers": ("diffusion", "diffusers"),
    "x-transformers": ("blocks", "x_transformers"),
    "torchscale": ("blocks", "torchscale"),
    "vit-pytorch": ("blocks", "vit_pytorch"),
    "torch_geometric": ("graphs", "torch_geometric"),
    "stable-baselines3": ("reinforcement", "stable_baselines3"),
    "hf": ("huggingface", "transformers"),
    "torchvision": ("vision", "torchvision"),
    "timm": ("vision", "timm"),
}


def names(sources: Collection[str] = tuple(SOURCES)) -> list[str]:
    """Return the names of all architectures of these sources, in order."""
    return [name for source in SOURCES if source in sources for name in _load_source(source)]


def find_architecture(name: str) -> Architecture:
    return _load_source(name.partition("/")[0])[name]


@cache
def _load_source(source: str) -> dict[str, Architecture]:
    file, package = SOURCES[source]
    if package not in sys.modules and importlib.util.find_spec(package) is None:
        return {}
    declare_vision_ops()
    loaded = importlib.import_module(f"benchmarks.zoo.{file}").architectures()
    return {each.name: each for each in loaded if each.name.startswith(f"{source}/")}
