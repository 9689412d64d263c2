"""Matrices that mix parallel streams, as in hyper-connections: which product is one, and what is measured of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from leadline.records import Mixing
from leadline.tracer.stats import NOTHING_KNOWN, Known, transfer, unobservable

# Heuristic: hyper-connections have 2 to 8 streams; larger square matrices are those of attention or of layers.
MAX_STREAMS = 16
PRODUCTS = frozenset({"matmul", "bmm", "einsum"})


class StreamProduct(NamedTuple):
    """A product $M X$ along an axis of $X$ with a square matrix $M$."""

    matrix: Tensor
    """(..., written stream, read stream)."""
    axis: int
    """The axis of the result that runs over the streams."""


class RawMixing(NamedTuple):
    """The mean matrix, its worst sums, and how far the streams are apart; fetched later."""

    axis: int
    matrix: Tensor
    numbers: Tensor
    """Largest distance of a row sum and of a column sum from 1, and the spread of the result over the streams."""


def find_stream_product(name: str, args: Sequence[Any], result: Tensor) -> StreamProduct | None:
    """The product as one of streams with a small square matrix; None if its shapes do not allow that."""
    flat = [each for arg in args for each in (arg if isinstance(arg, list | tuple) else (arg,))]
    operands = [each for each in flat if isinstance(each, Tensor)]
    if len(operands) != 2 or not all(map(_is_readable, (*operands, result))):
        return None
    if name == "einsum":
        return _from_equation(args[0], operands, result) if isinstance(args[0], str) else None
    matrix, streams = operands
    count = matrix.shape[-1]
    is_square = matrix.dim() > 1 and matrix.shape[-2] == count
    if not is_square or not 1 < count <= MAX_STREAMS or result.shape != streams.shape or streams.dim() < 3:
        return None
    return StreamProduct(matrix, streams.dim() - 2)


def _is_readable(x: Tensor) -> bool:
    return x.is_floating_point() and not x.is_nested and x.layout is torch.strided


def _from_equation(equation: str, operands: Sequence[Tensor], result: Tensor) -> StreamProduct | None:
    """As "...ij,...jd->...id", in any order of the operands and of the axes."""
    left, arrow, out = equation.replace(" ", "").partition("->")
    terms = [each.removeprefix("...") for each in left.split(",")]
    out = out.removeprefix("...")
    if not arrow or len(terms) != 2 or "." in "".join((*terms, out)):
        return None
    for matrix, streams, tensor in ((terms[0], terms[1], operands[0]), (terms[1], terms[0], operands[1])):
        summed = [each for each in matrix if each in streams and each not in out]
        written = [each for each in matrix if each in out and each not in streams]
        if len(summed) != 1 or len(written) != 1 or set(out) - set(written) != set(streams) - set(summed):
            continue
        places = [matrix.index(written[0]), matrix.index(summed[0])]
        order = [place - len(matrix) for place in places]
        count = tensor.shape[order[0]]
        if 1 < count <= MAX_STREAMS and tensor.shape[order[1]] == count and result.dim() > 2:
            axis = result.dim() - len(out) + out.index(written[0])
            return StreamProduct(tensor.movedim(order, (-2, -1)), axis)
    return None


def measure_mixing(result: Tensor, product: StreamProduct) -> RawMixing | None:
    """Measure a product of streams; None if its tensors cannot be read."""
    if unobservable(product.matrix) or unobservable(result) or not result.numel():
        return None
    with torch.no_grad(), torch._C.DisableTorchFunction():
        matrices = product.matrix.detach().float().reshape(-1, *product.matrix.shape[-2:])
        errors = [(matrices.sum(dim) - 1).abs().amax() for dim in (-1, -2)]
        numbers = torch.stack((*errors, stream_spread(result, product.axis)))
        return RawMixing(product.axis, matrices.mean(0), numbers)


def stream_spread(x: Tensor, axis: int) -> Tensor:
    """The share of the second moment of `x` that is not common to all indices of the axis: 0 if all are equal."""
    x = x.detach().float()
    common = x.mean(axis, keepdim=True)
    return (x - common).square().mean() / x.square().mean()


def fetch_mixings(
    raws: Sequence[tuple[RawMixing, Tensor | None]], known: Known = NOTHING_KNOWN
) -> list[Mixing]:
    """Fetch mixings, each with the spread of its gradient over the streams if that was measured."""
    tensors = [each for raw, gradient in raws for each in (raw.matrix, raw.numbers, gradient)]
    fetched = {**known, **transfer(each for each in tensors if id(each) not in known)}
    mixings = []
    for raw, gradient in raws:
        rows, columns, spread = fetched[id(raw.numbers)]
        mixings.append(
            Mixing(
                streams=raw.matrix.shape[0],
                matrix=tuple(fetched[id(raw.matrix)]),
                row_error=rows,
                column_error=columns,
                spread=spread,
                gradient_spread=None if gradient is None else fetched[id(gradient)][0],
            )
        )
    return mixings
