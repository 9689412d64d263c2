"""Moment rule of gated linear units that are one op."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from msgspec.structs import replace

from leadline.readings.theory import quadrature
from leadline.readings.theory.field import RandomField, product
from leadline.readings.theory.gradient import Terms, gradient_field, new_noise
from leadline.readings.theory.moment_rule import Call, MomentMap, moment_rule, single_output
from leadline.readings.theory.signal import nodes_of, rearranged, source_field


@moment_rule(assumes="the two halves are independent")
def glu(call: Call) -> MomentMap:
    r"""$y = a\,\sigma(b)$ for the halves $a, b$: $E[y^2] = q_a E[\sigma^2]$.

    $g_a^2 = E[\sigma^2]\,g_y^2$ and $g_b^2 = q_a E[\sigma'^2]\,g_y^2$; the gradient of the whole is their mean.
    """
    value, x = call.read()
    shape = call.output.shape
    axis = int(call.argument("dim", 1, -1)) % len(shape)
    half = rearranged(x, lambda f: replace(f, shape=shape))
    gate_values = torch.sigmoid(nodes_of(half))
    gate = call.sources.function(gate_values, half, source_field(half))
    if gate is None:
        return single_output(None, lambda grads: {})
    derivative = gate_values * (1 - gate_values)
    mean, ms = quadrature.moments(derivative)
    slope = RandomField(
        shape=shape, mean=mean, ms=ms, share=tuple(quadrature.kernel(derivative, ms, half.correlations))
    )
    out = call.sources.gaussian(product(half.field, gate.field), x.noise)

    def back(grads: Sequence[Terms]) -> Mapping[int, Terms]:
        g = gradient_field(grads[0], out)
        parts = product(g, gate.field), product(product(g, half.field), slope)
        share = tuple((a + b) / 2 for a, b in zip(parts[0].share, parts[1].share, strict=True))
        share = tuple(0.0 if each == axis else s for each, s in enumerate(share))
        ms = (parts[0].ms + parts[1].ms) / 2
        return {value: new_noise(RandomField(shape=x.field.shape, mean=0.0, ms=ms, share=share))}

    return single_output(out, back)
