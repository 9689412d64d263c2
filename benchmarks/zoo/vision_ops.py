"""Makes torchvision importable without its compiled part, which has no build for a CPU-only torch.

Its Python files, and so its models and timm, can be imported once the two operations that it registers at import are
declared. They get no kernel: only detectors call them, and the zoo has no detectors.
"""

from __future__ import annotations

import importlib.util
from functools import cache

import torch

_DECLARED = ("nms", "qnms")


@cache
def declare_vision_ops() -> torch.library.Library | None:
    """Make `import torchvision` work; return None if it is missing or complete. Repeated calls do nothing."""
    if importlib.util.find_spec("torchvision") is None or hasattr(torch.ops.torchvision, "nms"):
        return None
    library = torch.library.Library("torchvision", "DEF")
    for name in _DECLARED:
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    return library
