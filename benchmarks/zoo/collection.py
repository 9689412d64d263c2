"""All exhibits by name. A package that is not installed has none."""

from __future__ import annotations

import importlib
import importlib.util

from benchmarks.zoo.exhibit import Exhibit
from benchmarks.zoo.vision_ops import declare_vision_ops

WINGS = {  # our file, and the package that it needs
    "torch_own": "torch",
    "diffusion": "diffusers",
    "blocks": "einops",
    "graphs": "torch_geometric",
    "control": "stable_baselines3",
    "huggingface": "transformers",
    "vision": "timm",
}


def collection() -> dict[str, Exhibit]:
    declare_vision_ops()
    found: dict[str, Exhibit] = {}
    for wing, package in WINGS.items():
        if importlib.util.find_spec(package) is None:
            continue
        for each in importlib.import_module(f"benchmarks.zoo.{wing}").exhibits():
            if each.name in found:
                raise ValueError(f"two exhibits are called {each.name!r}")
            found[each.name] = each
    return found
