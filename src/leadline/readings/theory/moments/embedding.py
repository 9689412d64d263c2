"""Tables of rows that are looked up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from leadline.readings.theory.field import RandomField
from leadline.readings.theory.gradient import Terms
from leadline.readings.theory.moment_rule import Call, MomentMap, UnpredictableError, moment_rule, one


@moment_rule(assumes="the rows looked up are like all rows")
def embedding(call: Call) -> MomentMap:
    r"""$y_t = E_{i_t}$: $E[y^2] = E[E^2]$; two places share $\kappa q$ with $\kappa$ the share of equal indices.

    How often indices repeat is a fact of the batch: it is read off the measured likeness of the samples where there is
    one, else indices are taken to differ.
    """
    table = call.signal("weight", 1)
    if table is None:
        raise UnpredictableError("nothing is known of the table")
    shape = call.output.shape
    mean, ms = table.field.mean, table.field.ms
    alike = shared_by_data(call, mean, ms, shape)
    share = tuple(
        ms if size == 1 else mean**2 if axis == len(shape) - 1 else alike for axis, size in enumerate(shape)
    )
    out = call.sources.gaussian(RandomField(shape=shape, mean=mean, ms=ms, share=share))

    def back(grads: Sequence[Terms]) -> Mapping[int, Terms]:
        return {}

    return one(out, back)


def shared_by_data(call: Call, mean: float, ms: float, shape: tuple[int, ...]) -> float:
    """What two places share, from the mean square of unit means $c = (q + (P-1)s)/P$ over $P$ places."""
    measured = call.output.common_ms
    stats = call.output.forward
    places = call.output.shape[:-1]
    count = 1
    for size in places:
        count *= size
    if measured is None or stats is None or not stats.ms or count < 2:
        return mean**2
    part = (count * measured / stats.ms - 1) / (count - 1)
    return min(max(part * ms, mean**2), ms)
