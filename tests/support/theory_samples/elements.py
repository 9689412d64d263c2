"""Samples of functions of single elements."""

from __future__ import annotations

import torch

from leadline.ops.table import OP_TABLE
from leadline.readings.theory.moments.pointwise import function_of
from tests.support.theory_samples.case import BIG, MANY, Case

POSITIVE = "sqrt rsqrt log log2 log10 log1p reciprocal lgamma digamma logit acosh xlogy"
BOUNDED = "asin acos atanh erfinv logit tan"
TWO = "maximum minimum fmax fmin atan2 hypot logaddexp xlogy"
HEAVY = "pow float_power square exp exp2 expm1 sinh cosh xlogy erfc"


def pointwise(name: str) -> Case:
    """One operand, its distribution where the function is defined; heavy tails need many draws."""
    function = function_of(name)
    assert function is not None
    mean, std = (
        (3.0, 0.2) if name in POSITIVE.split() else (0.0, 0.15) if name in BOUNDED.split() else (0.1, 1.0)
    )
    mean, std = (0.5, 0.05) if name == "logit" else (mean, std)
    fixed = {
        "pow": (3.0,),
        "float_power": (2.0,),
        "clamp": (-1.0, 0.5),
        "clip": (-1.0, 0.5),
        "clamp_min": (0.2,),
        "clamp_max": (0.2,),
        "threshold": (0.1, 0.0),
        "fmod": (0.7,),
        "remainder": (0.7,),
    }
    given = fixed.get(name, ())
    if name in TWO.split():
        return Case(lambda x: function(x, 0.5 * x + 0.3), BIG, mean=mean, std=std, kurtosis=6.0)
    if name in HEAVY.split():
        return Case(lambda x: function(x, *given), BIG, mean=0.5, std=0.5, draws=MANY)
    return Case(lambda x: function(x, *given), BIG, mean=mean, std=std, kurtosis=6.0)


ELEMENTS: dict[str, Case] = {
    name: pointwise(name)
    for name in sorted(name for row in OP_TABLE if row.moment_rule == "pointwise" for name in row.names)
}
ELEMENTS["floor_divide"] = Case(lambda x: x + torch.floor_divide(x.detach(), 0.7), BIG, within=True)
