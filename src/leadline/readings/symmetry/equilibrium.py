r"""Where weight decay takes a scale-invariant weight: to an equilibrium norm and an equilibrium rotation per step.

The gradient of a scale-invariant weight $w$ is orthogonal to it and falls as $1/\|w\|$, so steps lengthen $w$ while
decay shortens it. With $\eta$ the rate, $\lambda$ the decay, $d$ the number of elements and $G = \|g\|\,\|w\|$, which
does not depend on $\|w\|$, and if gradients of successive steps are uncorrelated and the optimizer's memory is
short compared with $1/\eta\lambda$ steps (for Lion, the error is 4 % at a twentieth of that and 10 % at a fifth), the
two balance at

| optimizer | $\|w\|$ | angle per step |
|---|---|---|
| SGD, momentum $\mu$ | $(\eta G^2 / 2\lambda(1-\mu))^{1/4}$ | $\sqrt{2\eta\lambda/(1+\mu)}$ |
| AdamW | $\sqrt{\eta d / 2\lambda}$ | $\sqrt{2\eta\lambda\,(1-\beta_1)/(1+\beta_1)}$ |
| Adam with L2 | $(\eta \sqrt{d}\, G / 2\lambda)^{1/3}$ | $\eta\sqrt{d\,(1-\beta_1)/(1+\beta_1)}\,/\,\|w\|$ |
| Lion | $\eta\sqrt{d}$ / angle | $\sqrt{\pi\eta\lambda\,((1-\beta_1)^2 + \beta_1^2(1-\beta_2)/(1+\beta_2))}$ |

Reference: Kosson et al., "Rotational equilibrium: how weight decay balances learning across neural networks", 2024;
the angles of SGD, AdamW and Lion agree with the code that they published. The row of Adam with L2 and the norm of SGD
follow from the same balance; `tests/readings/symmetry/test_equilibrium.py` confirms each by simulation.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from leadline.ops.optimizers import find_rule
from leadline.records import ParamGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class Equilibrium:
    """The norm and the rotation at which a scale-invariant weight settles."""

    norm: float
    angle: float
    """Root mean square rotation per step, in radians."""
    steps: float
    """Order of magnitude of the number of steps until then: one over rate times decay."""


def equilibrium(optimizer: str, group: ParamGroup, *, count: int, radius: float | None) -> Equilibrium | None:
    """Where a weight of `count` elements settles; `radius` is $G$.

    None for an optimizer that is not in the table above, or without a rate or a decay.
    """
    rate, decay = group.lr or 0.0, group.weight_decay
    if not (rate > 0 and decay > 0 and count):
        return None
    if optimizer == "SGD":
        return _sgd(rate, decay, float(group.options.get("momentum") or 0.0), radius)
    if optimizer == "Lion":
        return _lion(rate, decay, _betas(group.options), count)
    if optimizer in ("Adam", "AdamW"):
        memory = _betas(group.options)[0]
        root = math.sqrt(count * (1 - memory) / (1 + memory))
        rule = find_rule(optimizer, group.options)
        if rule is not None and rule.decay == "decoupled":
            norm = math.sqrt(rate * count / (2 * decay))
            return Equilibrium(norm=norm, angle=rate * root / norm, steps=1 / (rate * decay))
        if not radius:
            return None
        norm = (rate * math.sqrt(count) * radius / (2 * decay)) ** (1 / 3)
        steps = radius / (rate * decay * norm * math.sqrt(count))
        return Equilibrium(norm=norm, angle=rate * root / norm, steps=steps)
    return None


def _sgd(rate: float, decay: float, momentum: float, radius: float | None) -> Equilibrium | None:
    if not radius:
        return None
    return Equilibrium(
        norm=(rate * radius**2 / (2 * decay * (1 - momentum))) ** 0.25,
        angle=math.sqrt(2 * rate * decay / (1 + momentum)),
        steps=(1 - momentum) / (rate * decay),
    )


def _lion(rate: float, decay: float, betas: tuple[float, float], count: int) -> Equilibrium:
    first, second = betas
    spread = (1 - first) ** 2 + first**2 * (1 - second) / (1 + second)
    angle = math.sqrt(math.pi * rate * decay * spread)
    return Equilibrium(norm=rate * math.sqrt(count) / angle, angle=angle, steps=1 / (rate * decay))


def _betas(options: Mapping[str, Any]) -> tuple[float, float]:
    first, second = options.get("betas") or (0.9, 0.999)
    return float(first), float(second)
