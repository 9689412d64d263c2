"""Dropout."""

from __future__ import annotations

from msgspec.structs import replace

from leadline.readings.theory.field import RandomField
from leadline.readings.theory.gradient import fresh, total
from leadline.readings.theory.moment_rule import Call, MomentMap, UnpredictableError, moment_rule, one
from leadline.readings.theory.signal import slope_of


@moment_rule()
def dropout(call: Call) -> MomentMap:
    r"""With rate $p$: $E[y] = \mu$, $E[y^2] = q/(1-p)$, neighbours share what they did; $g_x^2 = g_y^2/(1-p)$.

    Channel dropout drops whole channels: places of one channel then share $1/(1-p)$ as much, too.
    """
    value, x = call.read()
    rate = float(call.argument("p", 1, 0.5))
    if not _training(call) or rate == 0:
        return one(x, lambda grads: {value: tuple(grads[0])})
    if rate >= 1:
        raise UnpredictableError("dropout of everything")
    whole = call.op.name[-2:] in ("1d", "2d", "3d")

    def thinned(field: RandomField) -> RandomField:
        factor = 1 / (1 - rate)
        share = tuple(
            s * factor if size == 1 or (whole and axis > 1) else s
            for axis, (size, s) in enumerate(zip(field.shape, field.share, strict=True))
        )
        return replace(field, ms=field.ms * factor, share=share)

    parts = {x.key: slope_of(x)} if x.key >= 0 else None
    out = call.sources.gaussian(thinned(x.field), x.noise, parts)
    return one(out, lambda grads: {value: fresh(thinned(total(grads[0], out)))})


def _training(call: Call) -> bool:
    default = call.op.name != "native_dropout" and call.op.callable.startswith("torch.nn.functional")
    return bool(call.argument("training", 2, call.op.kwargs.get("train", default)))
