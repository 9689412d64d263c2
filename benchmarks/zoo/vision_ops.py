"""torchvision without its compiled part, which has no CPU build beside a CPU build of torch.

Its Python files, and with them its models and timm, import as soon as the two operations that it registers at import
are declared. They get no kernel: only detectors call them, and those are not in the zoo.
"""

from __future__ import annotations

import importlib.util
from functools import cache

import torch

_DECLARED = ("nms", "qnms")


@cache
def declare_vision_ops() -> torch.library.Library | None:
    """Make `import torchvision` work; None where it is not installed, or complete. Calling it again does nothing."""
    if importlib.util.find_spec("torchvision") is None or hasattr(torch.ops.torchvision, "nms"):
        return None
    library = torch.library.Library("torchvision", "DEF")
    for name in _DECLARED:
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    return library
