"""The direction of a step, free of rounding: a step that is too small is made again at a higher rate.

Parameters are numbers of few digits: a step of $10^{-8}$ of a weight is lost in it, or comes out coarse. Optimisers
step in proportion to their rate, so that the direction can be had from a longer step.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from leadline.updating import amounts
from leadline.updating.borrowed import Borrowed

COARSE = 64.0  # units in the last place of a weight: an update that is longer has its direction to about one percent
FIRST_FACTOR = 1024.0  # ours: where nothing at all is left of a step, the rate to try next
MOST_TRIES = 5  # ours: rates up to 1e15 times the user's


@dataclass(frozen=True, slots=True, kw_only=True)
class Direction:
    """`deltas` are `factor` times the user's step."""

    deltas: list[Tensor]
    factor: float
    slope: float
    """What the gradient promises of the user's step."""


def find_direction(borrowed: Borrowed, grads: list[Tensor], deltas: list[Tensor]) -> Direction:
    """That of the step itself, or of a longer one where rounding spoils it. Moves the parameters."""
    own = _direction(grads, deltas, 1.0)
    needed = _needed(borrowed)
    length, factor = _length(deltas), 1.0
    for _ in range(MOST_TRIES):
        if length >= needed:
            break
        factor *= max(2 * needed / length, 2.0) if length else FIRST_FACTOR
        if not borrowed.step_at(factor):
            return own
        longer = amounts.differences(borrowed.parameters, borrowed.start)
        length = _length(longer)
        if not math.isfinite(length):
            return own
    return own if factor == 1.0 or not length else _direction(grads, longer, factor)


def _direction(grads: list[Tensor], deltas: list[Tensor], factor: float) -> Direction:
    return Direction(deltas=deltas, factor=factor, slope=sum(amounts.inner(grads, deltas)) / factor)


def _needed(borrowed: Borrowed) -> float:
    """The length above which a step has a direction: `COARSE` units in the last place of all weights."""
    spacings = [_spacing(each) for each in borrowed.start]
    weights = amounts.norms(borrowed.start)
    return COARSE * math.sqrt(sum((eps * norm) ** 2 for eps, norm in zip(spacings, weights, strict=True)))


def _spacing(tensor: Tensor) -> float:
    return torch.finfo(tensor.dtype).eps if tensor.is_floating_point() or tensor.is_complex() else 0.0


def _length(tensors: list[Tensor]) -> float:
    return math.sqrt(sum(norm**2 for norm in amounts.norms(tensors)))
