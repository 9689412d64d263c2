r"""Where weight decay takes a scale-invariant weight: an equilibrium of norm and of rotation a step, then nothing more.

The gradient of a scale-invariant weight $w$ is orthogonal to it and falls as $1/\|w\|$, so steps lengthen $w$ while
decay shortens it. With $\eta$ the rate, $\lambda$ the decay, $d$ the number of elements and $G = \|g\|\,\|w\|$, which
does not depend on $\|w\|$, with gradients of successive steps taken as uncorrelated and the optimiser's memory as
short beside $1/\eta\lambda$ steps (for Lion, good to 4 % at a twentieth of that and to 10 % at a fifth), the two
balance at

| optimiser | $\|w\|$ | angle a step |
|---|---|---|
| SGD, momentum $\mu$ | $(\eta G^2 / 2\lambda(1-\mu))^{1/4}$ | $\sqrt{2\eta\lambda/(1+\mu)}$ |
| AdamW | $\sqrt{\eta d / 2\lambda}$ | $\sqrt{2\eta\lambda\,(1-\beta_1)/(1+\beta_1)}$ |
| Adam with L2 | $(\eta \sqrt{d}\, G / 2\lambda)^{1/3}$ | $\eta\sqrt{d\,(1-\beta_1)/(1+\beta_1)}\,/\,\|w\|$ |
| Lion | $\eta\sqrt{d}$ / angle | $\sqrt{\pi\eta\lambda\,((1-\beta_1)^2 + \beta_1^2(1-\beta_2)/(1+\beta_2))}$ |

Reference: Kosson et al., "Rotational equilibrium: how weight decay balances learning across neural networks", 2024;
the angles of SGD, AdamW and Lion agree with the code that they published. The row of Adam with L2 and SGD's norm follow
from the same balance; `tests/symmetry/test_equilibrium.py` confirms each by simulation.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from leadline.records import ParamGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class Equilibrium:
    """Norm and rotation that a scale-invariant weight settles at."""

    norm: float
    angle: float
    """Root mean square rotation a step, in radians."""
    steps: float
    """Order of magnitude of the steps to get there: one over rate times decay."""


def equilibrium(optimizer: str, group: ParamGroup, *, count: int, radius: float | None) -> Equilibrium | None:
    """Where `count` elements settle; `radius` is G. None for optimisers nobody worked out, or without rate or decay."""
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
        if is_decoupled(optimizer, group):
            norm = math.sqrt(rate * count / (2 * decay))
            return Equilibrium(norm=norm, angle=rate * root / norm, steps=1 / (rate * decay))
        if not radius:
            return None
        norm = (rate * math.sqrt(count) * radius / (2 * decay)) ** (1 / 3)
        steps = radius / (rate * decay * norm * math.sqrt(count))
        return Equilibrium(norm=norm, angle=rate * root / norm, steps=steps)
    return None


def is_decoupled(optimizer: str, group: ParamGroup) -> bool:
    """Whether decay is applied to the weights themselves, not added to the gradient (where Adam rescales it)."""
    return optimizer == "AdamW" or bool(group.options.get("decoupled_weight_decay"))


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
