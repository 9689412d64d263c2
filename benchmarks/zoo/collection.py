"""All exhibits by name. What a name begins with says which file knows it; a package that is missing has none."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Collection
from functools import cache

from benchmarks.zoo.architecture import Exhibit
from benchmarks.zoo.vision_ops import declare_vision_ops

WINGS = {  # what names begin with: our file, and the package that it needs
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


def names(beginnings: Collection[str] = tuple(WINGS)) -> list[str]:
    """Of all exhibits whose names begin so, in order."""
    return [name for beginning in WINGS if beginning in beginnings for name in _wing(beginning)]


def exhibit(name: str) -> Exhibit:
    return _wing(name.partition("/")[0])[name]


@cache
def _wing(beginning: str) -> dict[str, Exhibit]:
    file, package = WINGS[beginning]
    if importlib.util.find_spec(package) is None:
        return {}
    declare_vision_ops()
    made = importlib.import_module(f"benchmarks.zoo.{file}").exhibits()
    return {each.name: each for each in made if each.name.startswith(f"{beginning}/")}
