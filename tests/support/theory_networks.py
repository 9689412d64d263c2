"""Small networks of one kind, compared with what theory predicts of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from statistics import mean

import torch
from torch import nn

from leadline.readings.theory.prediction import predict
from leadline.records import Trace
from leadline.tracer.trace import trace

WIDTH, TOKENS, BATCH = 64, 32, 16
DRAWS = 4


def errors_at(seen: Trace, value: int) -> tuple[float, float]:
    """ln(predicted / measured) of a value and of its gradient."""
    found, record = predict(seen), seen.values[value]
    assert record.forward is not None
    assert record.backward is not None
    forward = math.log(found.forward.predicted[value].ms / record.forward.ms)
    return forward, math.log(found.backward.fields[value].ms / record.backward.ms)


def output_of(seen: Trace, name: str, place: int = 0) -> int:
    return [op for op in seen.ops if op.name == name][place].outputs[0]


def mean_errors(
    build: Callable[[], nn.Module],
    find: Callable[[Trace], int],
    shape: tuple[int, ...] = (BATCH, TOKENS, WIDTH),
    draws: int = DRAWS,
) -> tuple[float, float]:
    """The mean errors over draws, forward and backward; the loss is a product with independent noise."""
    pairs = []
    for draw in range(draws):
        torch.manual_seed(draw)
        model, x = build(), torch.randn(shape)
        noise = torch.randn(model(x).shape)
        seen = trace(model, x, loss=lambda out, noise=noise: (out * noise).sum())
        pairs.append(errors_at(seen, find(seen)))
    return mean(first for first, _ in pairs), mean(second for _, second in pairs)
