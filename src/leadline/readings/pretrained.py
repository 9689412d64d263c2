"""Recognizes pretrained weights: matrices that no initializer draws."""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import Tensor

from leadline.case import Case
from leadline.readings.wiring.frozen import MAX_MATRICES, MIN_ENTRIES, MIN_SIDE, is_random
from leadline.records import Parameter, Trace
from leadline.tracer.inputs import unwrap
from leadline.tracer.names import index_model

# Heuristic: fewer matrices do not show a pretrained network.
MIN_MATRICES = 3
# Derived: entries that are equal up to rounding have no pattern that training could have left.
MIN_RELATIVE_SPREAD = 1e-6


MATRICES, TABLES = ("matrix", "conv"), ("embedding",)
# Derived: queries, keys and values in one matrix are three; keys and values, or a gate and a value, are two.
PACKED = (2, 3)


def read_trained(trace: Trace, case: Case) -> tuple[float | None, tuple[str, ...]]:
    """The share of the larger matrices of the pass that show training, and the names of those that do.

    The share is None if there are too few, or no values. An initializer leaves independent entries around one mean:
    rows and columns of one size, and no direction that stands out (see `is_random`). Matrices of equal entries, such as
    zeros, are left out: they show neither. A network that training has moved by less than its initial weights still
    looks fresh. Embeddings are named too, but not in the share: they may be loaded into a network that is new.
    """
    tensors = {each.names[0]: each.item for each in index_model(unwrap(case.model)).parameters.values()}
    matrices = [each for each in trace.parameters if each.name in tensors and _can_be_judged(each, MATRICES)]
    tables = [each for each in trace.parameters if each.name in tensors and _can_be_judged(each, TABLES)]
    step = max(-(-len(matrices) // MAX_MATRICES), 1)
    signs = {each.name: _shows_training(tensors[each.name]) for each in matrices[::step]}
    known = [each for each in signs.values() if each is not None]
    share = sum(known) / len(known) if len(known) >= MIN_MATRICES else None
    signs |= {each.name: _shows_training(_filled_rows(tensors[each.name])) for each in tables[:MAX_MATRICES]}
    return share, tuple(name for name, sign in signs.items() if sign)


def _filled_rows(table: Tensor) -> Tensor:
    """The rows that are not zero: the row of padding is."""
    return table[table.detach().flatten(1).any(1)]


def _can_be_judged(parameter: Parameter, kinds: Collection[str]) -> bool:
    is_matrix = parameter.kind in kinds and len(parameter.shape) > 1
    if not (is_matrix and parameter.used and parameter.count >= MIN_ENTRIES and not parameter.unobserved):
        return False
    return min(parameter.shape[0], parameter.count // parameter.shape[0]) >= MIN_SIDE


@torch.no_grad()
def _shows_training(weight: Tensor) -> bool | None:
    """Whether a matrix was trained; None if its entries are equal or not finite."""
    if not weight.is_floating_point() or weight.is_meta or not bool(torch.isfinite(weight).all()):
        return None
    parts = [each - each.mean() for each in _unpacked(weight.detach().flatten(1).float())]
    min_square = MIN_RELATIVE_SPREAD**2 * weight.square().mean()
    spread = [each for each in parts if bool(each.square().mean() > min_square)]
    return any(not is_random(each) for each in spread) if spread else None


def _unpacked(matrix: Tensor) -> tuple[Tensor, ...]:
    """The matrices of a packed one (queries, keys and values), which may be drawn with different variances."""
    rows, columns = matrix.shape
    packed = rows // columns if rows % columns == 0 and rows // columns in PACKED else 1
    return matrix.chunk(packed)
