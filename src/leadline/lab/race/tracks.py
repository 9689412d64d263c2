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
from leadline.lab.data import LEVELS, digits, manual
from leadline.nn import SCHEMES, Encoder, LanguageModel, Options
from leadline.nn.schemes import find_scheme

HEADS = 2
PARTS = (0.8, 0.9)  # where training ends and where the held-out part begins; between them rates are chosen
CLASSES = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """Of a model: the width of the stream, and how many tokens it reads at once (text only)."""

    width: int
    time: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Samples: inputs by the first index, targets likewise. For text, windows of one long line."""

    inputs: Tensor
    targets: Tensor


class Track(Protocol):
    """Data and model of one kind of race."""

    def part(self, name: str, size: Size) -> Part: ...

    def build(self, scheme: str, depth: int, size: Size, generator: Generator) -> nn.Module: ...


def loss_of(model_output: Tensor, targets: Tensor) -> Tensor:
    """Cross entropy over all predictions, in nats each."""
    return F.cross_entropy(model_output.flatten(0, -2), targets.flatten())


class Text:
    """The next character of Python's manual."""

    def part(self, name: str, size: Size) -> Part:
        codes, _ = manual()
        mine = _cut(codes, name)
        windows = mine.unfold(0, size.time + 1, 1 if name == "train" else size.time + 1)
        return Part(inputs=windows[:, :-1], targets=windows[:, 1:])

    def build(self, scheme: str, depth: int, size: Size, generator: Generator) -> nn.Module:
        _, characters = manual()
        return _language_model(characters, scheme, depth, size, generator)


class Sequences:
    """Digits read as 16 tokens, the grey levels of 4 x 4 fields, line by line; the class after the last one."""

    def part(self, name: str, size: Size) -> Part:
        images, classes = digits()
        pooled = F.avg_pool2d(images[:, None], 2).flatten(1).round().long()
        return Part(inputs=_cut(pooled, name), targets=_cut(classes, name))

    def build(self, scheme: str, depth: int, size: Size, generator: Generator) -> nn.Module:
        wide = Size(width=size.width, time=16)
        return LastOnly(_language_model(max(LEVELS, CLASSES), scheme, depth, wide, generator))


class Images:
    """Digits read as 8 rows of 8 numbers, all seen at once; the class from the mean over rows."""

    def part(self, name: str, size: Size) -> Part:
        images, classes = digits()
        return Part(inputs=_cut((images - images.mean()) / images.std(), name), targets=_cut(classes, name))

    def build(self, scheme: str, depth: int, size: Size, generator: Generator) -> nn.Module:
        return RowReader(scheme, depth, size.width, generator)


TRACKS: Mapping[str, Track] = MappingProxyType({"text": Text(), "sequences": Sequences(), "images": Images()})


def find_track(name: str) -> Track:
    if name not in TRACKS:
        raise InputError(
            expected="data: one of " + ", ".join(TRACKS), got=f"data={name!r}", fix="take one of these"
        )
    return TRACKS[name]


class LastOnly(nn.Module):
    """The prediction after the last token alone: (batch, 1, classes)."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.model(tokens)
        return logits[:, -1:]


class RowReader(nn.Module):
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


def _language_model(vocab: int, scheme: str, depth: int, size: Size, generator: Generator) -> LanguageModel:
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


def _cut(samples: Tensor, name: str) -> Tensor:
    """The part of that name: `train`, `valid` or `held-out`."""
    first, second = (int(share * len(samples)) for share in PARTS)
    ends = {"train": (0, first), "valid": (first, second), "held-out": (second, len(samples))}
    start, stop = ends[name]
    return samples[start:stop]


@lru_cache(maxsize=8)
def base_rate(name: str) -> float:
    """Loss of the best constant prediction on the held-out part: what a network knows that has learned nothing but
    how often each answer is right."""
    targets = find_track(name).part("held-out", Size(width=8, time=16)).targets.flatten()
    seen = find_track(name).part("train", Size(width=8, time=16)).targets.flatten()
    shares = torch.bincount(seen, minlength=int(targets.max()) + 1).double() / len(seen)
    return float(-shares.log()[targets].mean())


# Who races: a scheme with one rate for all parameters, or with the rates that its depth law gives to each of them.

GROUPED = "+groups"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entrant:
    """`grouped`: each parameter has the rate that `leadline.nn.param_groups` gives it, times that of the race."""

    scheme: str
    grouped: bool


def find_entrant(name: str) -> Entrant:
    """`keel`, or `keel+groups`. Without a depth law groups would change nothing, and are refused."""
    scheme = name.removesuffix(GROUPED)
    row = find_scheme(scheme, 1)
    grouped = name != scheme
    if grouped and row.exponent is None:
        raise InputError(
            expected=f"{GROUPED} behind a scheme with a depth law: {', '.join(with_a_law(SCHEMES))}",
            got=name,
            fix=f"race {scheme}: its groups all have the same rate",
        )
    return Entrant(scheme=scheme, grouped=grouped)


def with_a_law(schemes: Iterable[str]) -> list[str]:
    return [name for name in schemes if SCHEMES[name].exponent is not None]


def every_entrant() -> tuple[str, ...]:
    """Every scheme, and those that have a depth law also with its groups."""
    return (*SCHEMES, *(name + GROUPED for name in with_a_law(SCHEMES)))
