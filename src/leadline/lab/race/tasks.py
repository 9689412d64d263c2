"""What is raced on: real data in three parts, and the model that a scheme and a depth make for it."""

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

HEADS = 2
SPLIT_ENDS = (
    0.8,
    0.9,
)  # where training ends and where the held-out part begins; between them rates are chosen
CLASSES = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSize:
    """Of a model: the width of the stream, and how many tokens it reads at once (text only)."""

    width: int
    time: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSplit:
    """Samples: inputs by the first index, targets likewise. For text, windows of one long line."""

    inputs: Tensor
    targets: Tensor


class RaceTask(Protocol):
    """Data and model of one kind of race."""

    def part(self, name: str, size: ModelSize) -> DataSplit: ...

    def build(self, scheme: str, depth: int, size: ModelSize, generator: Generator) -> nn.Module: ...


def cross_entropy(model_output: Tensor, targets: Tensor) -> Tensor:
    """Cross entropy over all predictions, in nats each."""
    return F.cross_entropy(model_output.flatten(0, -2), targets.flatten())


class TextTask:
    """The next character of Python's manual."""

    def part(self, name: str, size: ModelSize) -> DataSplit:
        codes, _ = manual_text()
        mine = _split(codes, name)
        windows = mine.unfold(0, size.time + 1, 1 if name == "train" else size.time + 1)
        return DataSplit(inputs=windows[:, :-1], targets=windows[:, 1:])

    def build(self, scheme: str, depth: int, size: ModelSize, generator: Generator) -> nn.Module:
        _, characters = manual_text()
        return _language_model(characters, scheme, depth, size, generator)


class SequenceTask:
    """Digits read as 16 tokens, the grey levels of 4 x 4 fields, line by line; the class after the last one."""

    def part(self, name: str, size: ModelSize) -> DataSplit:
        images, classes = digits()
        pooled = F.avg_pool2d(images[:, None], 2).flatten(1).round().long()
        return DataSplit(inputs=_split(pooled, name), targets=_split(classes, name))

    def build(self, scheme: str, depth: int, size: ModelSize, generator: Generator) -> nn.Module:
        wide = ModelSize(width=size.width, time=16)
        return LastTokenPrediction(_language_model(max(GRAY_LEVELS, CLASSES), scheme, depth, wide, generator))


class ImageTask:
    """Digits read as 8 rows of 8 numbers, all seen at once; the class from the mean over rows."""

    def part(self, name: str, size: ModelSize) -> DataSplit:
        images, classes = digits()
        return DataSplit(
            inputs=_split((images - images.mean()) / images.std(), name), targets=_split(classes, name)
        )

    def build(self, scheme: str, depth: int, size: ModelSize, generator: Generator) -> nn.Module:
        return ImageRowClassifier(scheme, depth, size.width, generator)


TASKS: Mapping[str, RaceTask] = MappingProxyType(
    {"text": TextTask(), "sequences": SequenceTask(), "images": ImageTask()}
)


def find_task(name: str) -> RaceTask:
    if name not in TASKS:
        raise InputError(
            expected="data: one of " + ", ".join(TASKS), got=f"data={name!r}", fix="take one of these"
        )
    return TASKS[name]


class LastTokenPrediction(nn.Module):
    """The prediction after the last token alone: (batch, 1, classes)."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.model(tokens)
        return logits[:, -1:]


class ImageRowClassifier(nn.Module):
    """Rows of an image to the stream, an encoder over them, and a linear read-out of their mean."""

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


def _split(samples: Tensor, name: str) -> Tensor:
    """The part of that name: `train`, `valid` or `held-out`."""
    first, second = (int(share * len(samples)) for share in SPLIT_ENDS)
    ends = {"train": (0, first), "valid": (first, second), "held-out": (second, len(samples))}
    start, stop = ends[name]
    return samples[start:stop]


@lru_cache(maxsize=8)
def base_rate(name: str) -> float:
    """Loss of the best constant prediction on the held-out part: what a network knows that has learned nothing but
    how often each answer is right."""
    targets = find_task(name).part("held-out", ModelSize(width=8, time=16)).targets.flatten()
    seen = find_task(name).part("train", ModelSize(width=8, time=16)).targets.flatten()
    shares = torch.bincount(seen, minlength=int(targets.max()) + 1).double() / len(seen)
    return float(-shares.log()[targets].mean())


# Who races: a scheme with one rate for all parameters, or with the rates that its depth law gives to each of them.

GROUPS_SUFFIX = "+groups"


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemeVariant:
    """`grouped`: each parameter has the rate that `leadline.nn.param_groups` gives it, times that of the race."""

    scheme: str
    grouped: bool


def find_variant(name: str) -> SchemeVariant:
    """`keel`, or `keel+groups`. Without a depth law groups would change nothing, and are refused."""
    scheme = name.removesuffix(GROUPS_SUFFIX)
    row = find_scheme(scheme, 1)
    grouped = name != scheme
    if grouped and row.exponent is None:
        raise InputError(
            expected=f"{GROUPS_SUFFIX} behind a scheme with a depth law: {', '.join(schemes_with_depth_law(SCHEMES))}",
            got=name,
            fix=f"race {scheme}: its groups all have the same rate",
        )
    return SchemeVariant(scheme=scheme, grouped=grouped)


def schemes_with_depth_law(schemes: Iterable[str]) -> list[str]:
    return [name for name in schemes if SCHEMES[name].exponent is not None]


def all_variants() -> tuple[str, ...]:
    """Every scheme, and those that have a depth law also with its groups."""
    return (*SCHEMES, *(name + GROUPS_SUFFIX for name in schemes_with_depth_law(SCHEMES)))
