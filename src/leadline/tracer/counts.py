"""What is counted of some ops: the indices they choose, the targets a loss sums over, the gradients of experts."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from leadline.tracer.stats import Number, count_nonzero, dense, unobservable

CHOICES = frozenset({"topk", "argmax", "max"})
"""Ops that return the indices of the largest elements."""
# Heuristic: more alternatives than any router has experts; classes of a large vocabulary are not counted.
MAX_CHOICES = 1024


def count_choices(inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Tensor | None:
    """How often each index along the last axis of the input was chosen; None if there are no such indices."""
    indices = outputs[-1]
    if not inputs or indices.dtype != torch.int64 or unobservable(indices) or not inputs[0].dim():
        return None
    if not inputs[0].is_floating_point():  # the maximum of integers is a value, not an index
        return None
    alternatives = inputs[0].size(-1)
    is_per_row = indices.numel() % max(inputs[0].numel() // max(alternatives, 1), 1) == 0
    if not 1 < alternatives <= MAX_CHOICES or not indices.numel() or not is_per_row:
        return None
    # not `bincount`, which waits for the device to learn the length of its result
    flat = indices.detach().reshape(-1)
    return flat.new_zeros(alternatives).scatter_add_(0, flat, torch.ones_like(flat))


def measure_slices(grad: Tensor) -> Tensor | None:
    """Norms at each index of the first axis of stacked matrices, as the experts of a mixture are; else None."""
    is_stack = grad.layout is torch.strided and grad.dim() > 2 and 1 < grad.shape[0] <= MAX_CHOICES
    if not is_stack or not grad.is_floating_point() or not grad.numel():
        return None
    stack, _ = dense(grad.detach())
    norms: Tensor = torch.linalg.vector_norm(stack.flatten(1), dim=1)
    return norms


CLASS_LOSSES = frozenset({"torch.nn.functional.cross_entropy", "torch.nn.functional.nll_loss"})


def count_targets(  # noqa: PLR0913  (the signature of the measured ops)
    input: Tensor,  # noqa: A002
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Number | None:
    """Return the number of targets that are not ignored, each with the weight of its class; None for a mean."""
    if reduction == "mean" or target.is_floating_point() or unobservable(target):
        return None
    with torch.no_grad(), torch._C.DisableTorchFunction():
        is_counted = target.detach() != ignore_index
        if weight is None:
            return count_nonzero(is_counted)
        # every target is looked up, because selecting the counted ones would wait for the device
        classes = target.detach().masked_fill(~is_counted, 0)
        total = (weight.detach()[classes] * is_counted).sum()
        return total.item() if total.device.type == "cpu" else total
