"""Models of torchvision, and the smallest model of each timm family, on images of 64 pixels where possible."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterator
from functools import partial

import torch
from torch import nn

from benchmarks.zoo.architecture import Architecture, labels
from leadline import Case

SIDE, BATCH, CLASSES = 64, 4, 5
# Heuristic: with more parameters a check takes minutes; half of timm's families start above 12 million.
MAX_PARAMETERS = 30_000_000
SIZE_WORDS = (  # in the names of timm's models, smallest first
    *(
        "test_",
        "atto",
        "femto",
        "pico",
        "nano",
        "zepto",
        "xxs",
        "xs",
        "xxtiny",
        "tiny",
        "_t_",
        "_s_",
        "small",
    ),
    *("mini", "_b0", "_18", "_26", "050", "lite"),
)
TORCHVISION = (
    *(
        "alexnet",
        "resnet18",
        "vgg11",
        "vgg11_bn",
        "densenet121",
        "squeezenet1_1",
        "mobilenet_v2",
        "googlenet",
    ),
    *("mobilenet_v3_small", "shufflenet_v2_x0_5", "mnasnet0_5", "efficientnet_b0", "regnet_x_400mf"),
    *("regnet_y_400mf", "convnext_tiny", "swin_t", "resnet50"),
)


def architectures() -> Iterator[Architecture]:
    if importlib.util.find_spec("torchvision") is None:
        return
    for name in TORCHVISION:
        yield Architecture(
            name=f"torchvision/{name}", origin="torchvision", build=partial(from_torchvision, name)
        )
    timm = importlib.import_module("timm")
    for family in timm.list_modules():
        models = timm.list_models(module=family)
        if models:
            name = smallest(models)
            yield Architecture(name=f"timm/{family}/{name}", origin="timm", build=partial(from_timm, name))


def smallest(names: list[str]) -> str:
    """Return the name with the word for the smallest size; the shortest one if several have it."""
    ranks = {word: rank for rank, word in enumerate(SIZE_WORDS)}
    return min(
        names,
        key=lambda name: (
            min((ranks[w] for w in SIZE_WORDS if w in name), default=len(SIZE_WORDS)),
            len(name),
        ),
    )


def from_torchvision(name: str) -> Case:
    models = importlib.import_module("torchvision.models")
    options = {"aux_logits": False, "init_weights": True} if name == "googlenet" else {}
    return classification_case(models.get_model(name, weights=None, num_classes=CLASSES, **options), SIDE)


def from_timm(name: str) -> Case:
    """Build the model for 64 pixels if it accepts an image size, otherwise for its fixed size."""
    timm = importlib.import_module("timm")
    try:
        model, side = timm.create_model(name, num_classes=CLASSES, img_size=SIDE), SIDE
    except (TypeError, AssertionError, ValueError, RuntimeError):
        model = timm.create_model(name, num_classes=CLASSES)
        fixed = model.default_cfg.get("fixed_input_size")
        side = model.default_cfg["input_size"][-1] if fixed else SIDE
    return classification_case(model, side)


def classification_case(model: nn.Module, side: int) -> Case:
    size = sum(each.numel() for each in model.parameters())
    if size > MAX_PARAMETERS:
        raise ValueError(f"the smallest has {size / 1e6:.0f} million parameters")
    return Case(model, torch.randn(BATCH, 3, side, side), labels(CLASSES, BATCH), nn.functional.cross_entropy)
