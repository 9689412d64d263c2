"""Gated linear units that are one op."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from msgspec.structs import replace

from leadline.readings.theory import quadrature
from leadline.readings.theory.field import RandomField, product
from leadline.readings.theory.gradient import Terms, fresh, total
from leadline.readings.theory.moment_rule import Call, MomentMap, moment_rule, one
from leadline.readings.theory.signal import moved, nodes_of, standardised


@moment_rule(assumes="the two halves are independent")
def glu(call: Call) -> MomentMap:
    r"""$y = a\,\sigma(b)$ for the halves $a, b$: $E[y^2] = q_a E[\sigma^2]$.

    $g_a^2 = E[\sigma^2]\,g_y^2$ and $g_b^2 = q_a E[\sigma'^2]\,g_y^2$; the gradient of the whole is their mean.
    """
    value, x = call.read()
    shape = call.output.shape
    axis = int(call.argument("dim", 1, -1)) % len(shape)
    half = moved(x, lambda f: replace(f, shape=shape))
    open_ = torch.sigmoid(nodes_of(half))
    gate = call.sources.function(open_, half, standardised(half))
    if gate is None:
        return one(None, lambda grads: {})
    steep = open_ * (1 - open_)
    mean, ms = quadrature.moments(steep)
    slope = RandomField(
        shape=shape, mean=mean, ms=ms, share=tuple(quadrature.kernel(steep, ms, half.correlations))
    )
    out = call.sources.gaussian(product(half.field, gate.field), x.noise)

    def back(grads: Sequence[Terms]) -> Mapping[int, Terms]:
        g = total(grads[0], out)
        parts = product(g, gate.field), product(product(g, half.field), slope)
        share = tuple((a + b) / 2 for a, b in zip(parts[0].share, parts[1].share, strict=True))
        share = tuple(0.0 if each == axis else s for each, s in enumerate(share))
        ms = (parts[0].ms + parts[1].ms) / 2
        return {value: fresh(RandomField(shape=x.field.shape, mean=0.0, ms=ms, share=share))}

    return one(out, back)
