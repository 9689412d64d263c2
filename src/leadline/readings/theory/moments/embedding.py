"""Moment rule of embeddings."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from leadline.ops.arguments import argument
from leadline.readings.theory.field import RandomField
from leadline.readings.theory.gradient import Terms
from leadline.readings.theory.moment_rule import (
    Call,
    MomentMap,
    UnpredictableError,
    moment_rule,
    single_output,
)


@moment_rule(assumes="the rows that are looked up are like all rows")
def embedding(call: Call) -> MomentMap:
    r"""$y_t = E_{i_t}$: $E[y^2] = E[E^2]$; two positions share $\kappa q$ with $\kappa$ the share of equal indices.

    How often indices repeat is a fact of the batch: it is read from the measured likeness of the samples if there is
    one; otherwise all indices are taken to differ. Indices that were expanded along an axis, such as positions of each
    sample, are equal along it.
    """
    table = call.signal("weight", 1)
    if table is None:
        raise UnpredictableError("nothing is known about the table")
    shape = call.output.shape
    mean, ms = table.field.mean, table.field.ms
    copied = _copied_axes(call)
    alike = _measured_share(call, mean, ms, copied)
    share = tuple(
        ms if size == 1 or axis in copied else mean**2 if axis == len(shape) - 1 else alike
        for axis, size in enumerate(shape)
    )
    out = call.sources.gaussian(RandomField(shape=shape, mean=mean, ms=ms, share=share))

    def back(grads: Sequence[Terms]) -> Mapping[int, Terms]:
        return {}

    return single_output(out, back)


def _copied_axes(call: Call) -> frozenset[int]:
    """The axes along which the indices are equal: they were expanded, or they count the tokens of each sample.

    A count by `cumsum` over a mask is taken to be equal in all samples, because masks are taken to hide nothing.
    """
    value = call.id("input", 0)
    while value is not None:
        maker = call.value(value).op
        op = None if maker is None else call.trace.ops[maker]
        if op is None or not op.inputs:
            return frozenset()
        before, after = call.value(op.inputs[0]).shape, call.value(value).shape
        if op.name == "cumsum":
            counted = int(argument(op, "dim", 1)) % len(after)
            return frozenset(axis for axis, size in enumerate(after) if axis != counted and size > 1)
        if before != after:
            if op.name not in ("expand", "expand_as", "broadcast_to"):
                return frozenset()
            wide = (1,) * (len(after) - len(before)) + before
            return frozenset(axis for axis, size in enumerate(wide) if size == 1 < after[axis])
        value = op.inputs[0]
    return frozenset()


def _measured_share(call: Call, mean: float, ms: float, copied: frozenset[int]) -> float:
    """What two positions share, from the mean square of unit means $c = (q + (P-1)s)/P$ over $P$ positions."""
    measured = call.output.common_ms
    stats = call.output.forward
    count = math.prod(size for axis, size in enumerate(call.output.shape[:-1]) if axis not in copied)
    if measured is None or stats is None or not stats.ms or count < 2:
        return mean**2
    part = (count * measured / stats.ms - 1) / (count - 1)
    return min(max(part * ms, mean**2), ms)
