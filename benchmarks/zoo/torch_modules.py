"""Transformers and recurrent networks made of torch's own modules."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.zoo.architecture import Architecture, labels, noise_target_loss
from leadline import Case

WIDTH, TIME, BATCH, CLASSES = 32, 12, 8, 5


class Reader(nn.Module):
    """A recurrent network and a linear head on its last state."""

    def __init__(self, kind: type[nn.RNNBase], **options: Any) -> None:
        super().__init__()
        self.body = kind(WIDTH, WIDTH, batch_first=True, **options)
        self.head = nn.Linear(WIDTH * (2 if options.get("bidirectional") else 1), CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x)[0][:, -1])


class Encoder(nn.Module):
    """`nn.TransformerEncoder` with a head on the mean."""

    def __init__(self, layers: int, **options: Any) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, batch_first=True, **options)
        self.body = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x).mean(1))


def classification_case(make: Any) -> Case:
    return Case(make(), torch.randn(BATCH, TIME, WIDTH), labels(CLASSES, BATCH), nn.functional.cross_entropy)


def whole_transformer(*, norm_first: bool) -> Case:
    model = nn.Transformer(WIDTH, 4, 2, 2, 4 * WIDTH, batch_first=True, norm_first=norm_first)
    sides = torch.randn(BATCH, TIME, WIDTH), torch.randn(BATCH, TIME // 2, WIDTH)
    return Case(model, sides, torch.randn(BATCH, TIME // 2, WIDTH), noise_target_loss)


MODELS = {
    "rnn": partial(classification_case, partial(Reader, nn.RNN)),
    "lstm": partial(classification_case, partial(Reader, nn.LSTM)),
    "gru": partial(classification_case, partial(Reader, nn.GRU)),
    "lstm, 2 layers, both directions": partial(
        classification_case, partial(Reader, nn.LSTM, num_layers=2, bidirectional=True)
    ),
    "TransformerEncoder, post-norm": partial(classification_case, partial(Encoder, 4)),
    "TransformerEncoder, pre-norm": partial(
        classification_case, partial(Encoder, 4, norm_first=True, activation="gelu")
    ),
    "TransformerEncoder, 12 layers, post-norm": partial(classification_case, partial(Encoder, 12)),
    "Transformer, post-norm": partial(whole_transformer, norm_first=False),
    "Transformer, pre-norm": partial(whole_transformer, norm_first=True),
}


def architectures() -> Iterator[Architecture]:
    for name, build in MODELS.items():
        yield Architecture(name=f"torch/{name}", origin="torch", build=build)
