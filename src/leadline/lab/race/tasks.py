"""The tasks of a race: real data in three splits, and the model for a given scheme and depth."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from leadline.errors import InputError
from leadline.lab.data import GRAY_LEVELS, digits, manual_text
from leadline.nn import SCHEMES, Encoder, LanguageModel, Options
from leadline.nn.schemes import find_scheme

# Heuristic: the fewest heads that are more than one.
HEADS = 2
# Heuristic: where the training data ends and where the held-out data starts; learning rates are chosen between.
SPLIT_ENDS = (0.8, 0.9)
# Derived: the ten digits.
CLASSES = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSize:
    """The size of a model: the width of the stream, and the number of tokens it reads (text only)."""

    width: int
    time: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSplit:
    """Samples along the first dimension of inputs and targets. For text, they are windows of one long line."""

    inputs: Tensor
    targets: Tensor


class RaceTask(Protocol):
    """The data and the model of one kind of race."""

    def split(self, name: str, size: ModelSize) -> DataSplit: ...

    def build(self, scheme: str, depth: int, size: ModelSize, generator: Generator) -> nn.Module: ...


def cross_entropy(model_output: Tensor, targets: Tensor) -> Tensor:
    """Return the mean cross entropy over all predictions, in nats."""
    return F.cross_entropy(model_output.flatten(0, -2), targets.flatten())


class TextTask:
    """Predict the next character of Python's manual."""

    def split(self, name: str, size: ModelSize) -> DataSplit:
        codes, _ = manual_text()
        mine = _select_split(codes, name)
        windows = mine.unfold(0, size.time + 1, 1 if name == "train" else size.time + 1)
        return DataSplit(inputs=windows[:, :-1], targets=windows[:, 1:])

    def build(self, scheme: str, depth: int, size: ModelSize, generator: Generator) -> nn.Module:
        _, characters = manual_text()
        return _language_model(characters, scheme, depth, size, generator)


class SequenceTask:
    """Read a digit as 16 tokens, the gray levels of 4 x 4 fields, and predict its class after the last one."""

    def split(self, name: str, size: ModelSize) -> DataSplit:
        images, classes = digits()
        pooled = F.avg_pool2d(images[:, None], 2).flatten(1).round().long()
        return DataSplit(inputs=_select_split(pooled, name), targets=_select_split(classes, name))

    def build(self, scheme: str, depth: int, size: ModelSize, generator: Generator) -> nn.Module:
        wide = ModelSize(width=size.width, time=16)
        return LastTokenPrediction(_language_model(max(GRAY_LEVELS, CLASSES), scheme, depth, wide, generator))


class ImageTask:
    """Read a digit as 8 rows of 8 numbers, all at once, and predict its class from the mean over rows."""

    def split(self, name: str, size: ModelSize) -> DataSplit:
        images, classes = digits()
        return DataSplit(
            inputs=_select_split((images - images.mean()) / images.std(), name),
            targets=_select_split(classes, name),
        )

    def build(self, scheme: str, depth: int, size: ModelSize, generator: Generator) -> nn.Module:
        return ImageRowClassifier(scheme, depth, size.width, generator)


TASKS: Mapping[str, RaceTask] = MappingProxyType(
    {"text": TextTask(), "sequences": SequenceTask(), "images": ImageTask()}
)


def find_task(name: str) -> RaceTask:
    if name not in TASKS:
        raise InputError(
            expected="data: one of " + ", ".join(TASKS), got=f"data={name!r}", fix="choose one of these"
        )
    return TASKS[name]


class LastTokenPrediction(nn.Module):
    """The prediction after the last token only: (batch, 1, classes)."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.model(tokens)
        return logits[:, -1:]


class ImageRowClassifier(nn.Module):
    """A linear map of the rows of an image, an encoder over them, and a linear readout of their mean."""

    def __init__(self, scheme: str, depth: int, width: int, generator: Generator) -> None:
        super().__init__()
        self.rows = nn.Linear(8, width)
        options = Options(positions="learned", hidden=2 * width)
        self.encoder = Encoder(width, HEADS, depth, scheme=scheme, options=options, generator=generator)
        self.head = nn.Linear(width, CLASSES)
        for layer in (self.rows, self.head):
            nn.init.normal_(layer.weight, std=layer.in_features**-0.5, generator=generator)
            nn.init.zeros_(layer.bias)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.head(self.encoder(self.rows(images)).mean(1, keepdim=True))
        return logits


def _language_model(
    vocab: int, scheme: str, depth: int, size: ModelSize, generator: Generator
) -> LanguageModel:
    options = Options(positions="learned", hidden=2 * size.width)
    return LanguageModel(
        vocab,
        size.width,
        HEADS,
        depth,
        scheme=scheme,
        max_len=size.time,
        options=options,
        generator=generator,
    )


def _select_split(samples: Tensor, name: str) -> Tensor:
    """Return the split with this name: `train`, `valid` or `held-out`."""
    first, second = (int(share * len(samples)) for share in SPLIT_ENDS)
    ends = {"train": (0, first), "valid": (first, second), "held-out": (second, len(samples))}
    start, stop = ends[name]
    return samples[start:stop]


@lru_cache(maxsize=8)
def base_rate(name: str) -> float:
    """Return the held-out loss of the best constant prediction, which knows only the frequency of each answer."""
    targets = find_task(name).split("held-out", ModelSize(width=8, time=16)).targets.flatten()
    trained = find_task(name).split("train", ModelSize(width=8, time=16)).targets.flatten()
    shares = torch.bincount(trained, minlength=int(targets.max()) + 1).double() / len(trained)
    return float(-shares.log()[targets].mean())


# Scheme variants: one learning rate for all parameters, or the rates that the scheme's depth law gives to each group.

GROUPS_SUFFIX = "+groups"


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemeVariant:
    """A scheme. If `grouped`, `leadline.nn.param_groups` scales the learning rate of each parameter."""

    scheme: str
    grouped: bool


def find_variant(name: str) -> SchemeVariant:
    """Return the variant with a name such as `keel` or `keel+groups`. Groups need a scheme with a depth law."""
    scheme = name.removesuffix(GROUPS_SUFFIX)
    row = find_scheme(scheme, 1)
    grouped = name != scheme
    if grouped and row.exponent is None:
        raise InputError(
            expected=f"{GROUPS_SUFFIX} after a scheme with a depth law: {', '.join(schemes_with_depth_law(SCHEMES))}",
            got=name,
            fix=f"use {scheme}, whose groups all have the same rate",
        )
    return SchemeVariant(scheme=scheme, grouped=grouped)


def schemes_with_depth_law(schemes: Iterable[str]) -> list[str]:
    return [name for name in schemes if SCHEMES[name].exponent is not None]


def all_variants() -> tuple[str, ...]:
    """Return every scheme, and every scheme with a depth law also with groups."""
    return (*SCHEMES, *(name + GROUPS_SUFFIX for name in schemes_with_depth_law(SCHEMES)))
