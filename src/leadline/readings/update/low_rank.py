"""What a step does to the products of thin matrices that are added to frozen ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from leadline.readings.update.direction import StepTensors
from leadline.readings.update.tensor_sums import largest_singular_value
from leadline.records import LowRankStep, LowRankTerm
from leadline.tracer import stats
from leadline.tracer.names import ModelIndex

# Heuristic: terms that are measured, spread over the depth.
MAX_TERMS = 24


@torch.no_grad()
def low_rank_steps(
    terms: Sequence[LowRankTerm], step: StepTensors, model_index: ModelIndex
) -> Iterator[LowRankStep]:
    r"""The change of $s\,B A$ by the step, and the size of the $W$ that it is added to, as largest singular values."""
    place = {name: index for index, name in enumerate(step.names)}
    tensors = {each.names[0]: each.item for each in model_index.parameters.values()}
    for term in terms[:: max(-(-len(terms) // MAX_TERMS), 1)]:
        base = tensors.get(term.base)
        if term.up not in place or base is None or term.down not in tensors or stats.unobservable(base):
            continue
        up, up_change = (each[place[term.up]] for each in (step.start, step.deltas))
        if term.down in place:
            down, down_change = (each[place[term.down]] for each in (step.start, step.deltas))
        else:  # a frozen A, as in LoRA-FA
            down, down_change = tensors[term.down], torch.zeros_like(tensors[term.down])
        change = _change(*(_upright(each, term.rank) for each in (up, up_change, down, down_change)))
        yield LowRankStep(
            base=term.base,
            rank=term.rank,
            scale=term.scale,
            change=term.scale * change,
            base_size=largest_singular_value(base.detach().float()),
        )


def _upright(matrix: Tensor, rank: int) -> Tensor:
    """The matrix with the rank as its second dimension."""
    wide = matrix.detach().float()
    return wide if wide.shape[1] == rank else wide.T


def _change(up: Tensor, up_change: Tensor, down: Tensor, down_change: Tensor) -> float:
    r"""Largest singular value of $(B + b)(A + a)^T - B A^T = b (A + a)^T + B a^T$, from triangular factors."""
    left = torch.cat((up_change, up), dim=1)
    right = torch.cat((down + down_change, down_change), dim=1)
    if not (bool(torch.isfinite(left).all()) and bool(torch.isfinite(right).all())):
        return float("nan")
    small = torch.linalg.qr(left, mode="r").R @ torch.linalg.qr(right, mode="r").R.T
    return float(torch.linalg.matrix_norm(small, ord=2))
