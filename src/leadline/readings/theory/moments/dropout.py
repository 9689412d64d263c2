"""Moment rule of dropout."""

from __future__ import annotations

from msgspec.structs import replace

from leadline.readings.theory.field import RandomField, profile_of
from leadline.readings.theory.gradient import gradient_field, new_noise
from leadline.readings.theory.moment_rule import (
    Call,
    MomentMap,
    UnpredictableError,
    moment_rule,
    single_output,
)
from leadline.readings.theory.signal import slope_of


@moment_rule()
def dropout(call: Call) -> MomentMap:
    r"""With rate $p$: $E[y] = \mu$, $E[y^2] = q/(1-p)$, neighbors share the same as before; $g_x^2 = g_y^2/(1-p)$.

    Channel dropout drops whole channels: positions of one channel then share $1/(1-p)$ times as much.
    """
    value, x = call.read()
    rate = float(call.argument("p", 1, 0.5))
    if not _training(call) or rate == 0:
        return single_output(x, lambda grads: {value: tuple(grads[0])})
    if rate >= 1:
        raise UnpredictableError("dropout of all elements")
    whole_channels = call.op.name[-2:] in ("1d", "2d", "3d")

    def dropped(field: RandomField) -> RandomField:
        factor = 1 / (1 - rate)
        share = tuple(
            s * factor if size == 1 or (whole_channels and axis > 1) else s
            for axis, (size, s) in enumerate(zip(field.shape, field.share, strict=True))
        )
        profile = profile_of(field)
        if profile is not None and profile.pairs is not None:
            apart = (profile.pairs - profile.pairs.diagonal().diag()) / factor
            profile = profile._replace(pairs=apart + profile.pairs.diagonal().diag())
        return replace(field, ms=field.ms * factor, share=share, profile=profile)

    parts = {x.key: slope_of(x)} if x.key >= 0 else None
    out = call.sources.gaussian(dropped(x.field), x.noise, parts)
    return single_output(out, lambda grads: {value: new_noise(dropped(gradient_field(grads[0], out)))})


def _training(call: Call) -> bool:
    default = call.op.name != "native_dropout" and call.op.callable.startswith("torch.nn.functional")
    return bool(call.argument("training", 2, call.op.kwargs.get("train", default)))
