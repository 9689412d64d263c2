"""Specimens that speak in other things than one tensor: dicts, dataclasses, named tuples, None, keywords."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leadline import Case
from tests.support.zoo.plain import BATCH, WIDTH, batch
from tests.support.zoo.specimen import energy, specimen


class Wrapped(nn.Module):
    """Two linear layers with `pack` between them and at the end; `unpack` is its inverse."""

    def __init__(self, pack: object, unpack: object) -> None:
        super().__init__()
        self.inner, self.outer = Packer(pack), nn.Linear(WIDTH, WIDTH)
        self.pack, self.unpack = pack, unpack

    def forward(self, x: Tensor) -> object:
        return self.pack(self.outer(torch.tanh(self.unpack(self.inner(x)))))


class Packer(nn.Module):
    def __init__(self, pack: object) -> None:
        super().__init__()
        self.layer, self.pack = nn.Linear(WIDTH, WIDTH), pack

    def forward(self, x: Tensor) -> object:
        return self.pack(self.layer(x))


def packed(pack: object, unpack: object) -> Case:
    return Case(Wrapped(pack, unpack), batch(), loss=lambda out: energy(unpack(out)))


@specimen()
def dict_output() -> Case:
    return packed(lambda h: {"hidden": h, "aux": {"name": "x", "none": None}}, lambda out: out["hidden"])


@dataclass
class Answer:
    hidden: Tensor
    note: str
    extra: list[Tensor | None]


@specimen()
def dataclass_output() -> Case:
    return packed(
        lambda h: Answer(hidden=h, note="", extra=[None, h * 2]), lambda out: out.hidden + out.extra[1]
    )


class Pair(NamedTuple):
    hidden: Tensor
    nothing: None


@specimen()
def namedtuple_output() -> Case:
    return packed(lambda h: Pair(h, None), lambda out: out.hidden)


@specimen()
def none_in_output() -> Case:
    return packed(lambda h: (None, [h, None], 3), lambda out: out[1][0])


class Keywords(nn.Module):
    """Takes keywords only, tensors and others."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, 3)

    def forward(self, *, features: Tensor, scale: float, mask: Tensor | None = None) -> Tensor:
        out = scale * self.layer(features)
        return out if mask is None else out.masked_fill(mask, 0.0)


@specimen()
def keywords_only() -> Case:
    inputs = {"features": batch(), "scale": 0.5, "mask": torch.arange(BATCH * 3).view(BATCH, 3) % 4 == 0}
    return Case(Keywords(), inputs, torch.arange(BATCH) % 3, F.cross_entropy)
