r"""What caused a change of the signal over a range of blocks, in words: the attribution, summed by kind of op.

A weight layer and the activation behind it are one factor a layer, $\chi = \sigma_w^2\, E[\phi'^2]$. Where weights of
ordinary size can make good what the slope loses (ReLU needs $\sigma_w^2 = 2$), the whole of $\ln \chi$ is the weights'
doing; where they cannot (the sigmoid needs at least 16), each is shown with its share.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from leadline.checks._check import Symptom
from leadline.checks._laws import Law, backward_laws, forward_laws
from leadline.ops.gaussian import max_slope_square
from leadline.records import Direction, Factor, Profile, Severity

REPAIRABLE = (
    4.0  # sigma_w^2; ours: of PyTorch's activations only the sigmoids need more (16 and up), tanh needs 1
)
NEAR = 0.1  # relative; ours: the variance of 1000 drawn weights scatters by 4 %
SMALL_SHARE = 0.03  # of a change: kinds with less go unmentioned

_NAMES = {
    "activation": "the activations",
    "weight": "the weights",
    "norm": "the norms",
    "attention": "attention",
    "product": "products of signals",
    "skip": "the scaled skips",
    "branch": "what the branches add to their skips",
    "scale": "scales and biases",
    "pool": "pooling",
    "loss": "the loss",
    "rest": "ops that cannot be told apart",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Layerwise:
    """The weights and activations of a range of blocks, as factors a layer."""

    activation: str
    slope: float
    """What the activation multiplies the moment by, a layer."""
    weight: float
    r"""What the weights multiply it by, a layer: $\sigma_w^2$."""

    @property
    def needed(self) -> float:
        """The weights' factor at which the two together keep the moment; of a saturated activation, when it is not."""
        return 1 / self.slope if 1 / self.slope <= REPAIRABLE else 1 / self.most

    @property
    def repairable(self) -> bool:
        return self.needed <= REPAIRABLE

    @property
    def most(self) -> float:
        """The largest squared slope of the activation; 1 where it is not in the table."""
        largest = max_slope_square(self.activation)
        return 1.0 if largest is None else largest


def law_symptom(profile: Profile, law: Law, message: str, *, severity: Severity | None = None) -> Symptom:
    """What a depth-law rule saw: its own message, and behind it the cause."""
    cause = cause_of(profile, law)
    return Symptom(
        severity=severity or law.severity,
        where=law.where,
        message=f"{message}; {cause}" if cause else message,
        evidence=law.evidence(),
        layers=law.layers,
    )


def cause_of(profile: Profile, law: Law) -> str:
    """A clause that names the cause of a law's change: "all of it is the weights: ..."; "" if nothing is known."""
    factors = _factors(profile, law)
    shares = _by_kind(factors, law.direction)
    total = sum(shares.values())
    if not shares or abs(total) < 1e-9:
        return ""
    layer = layerwise(profile, law)
    own = shares.get("weight", 0.0) + shares.get("activation", 0.0)
    if layer is not None and layer.repairable and abs(own) > (1 - SMALL_SHARE) * abs(total):
        return _weights(layer, law.direction)
    return _listed(shares, total, layer, law)


def layerwise(profile: Profile, law: Law) -> Layerwise | None:
    """Weights and activation of the range, if every block has its own and they are all of one kind."""
    factors = _factors(profile, law)
    acts = [f for f in factors if f.kind == "activation" and _gain(f, law.direction) is not None]
    weights = [f for f in factors if f.kind == "weight" and _gain(f, law.direction) is not None]
    if not acts or not weights or len({f.op for f in acts}) > 1:
        return None
    slope = _mean_gain(acts, law.direction)
    weight = _mean_gain(weights, law.direction)
    return Layerwise(activation=acts[0].op, slope=slope, weight=weight)


def blamed_on_weights(profile: Profile) -> Iterator[tuple[Law, Layerwise]]:
    """One law a plain stream whose cause is the gain of its weights; the backward law if there is one."""
    seen: set[int] = set()
    for law in (*backward_laws(profile), *forward_laws(profile)):
        layer = layerwise(profile, law)
        plain = not any(profile.blocks[i].residual for i in range(law.layers[0], law.layers[1] + 1))
        if law.first.stream in seen or not plain or law.normalised or layer is None or not layer.repairable:
            continue
        seen.add(law.first.stream)
        yield law, layer


def is_default(profile: Profile, law: Law) -> bool:
    r"""The weights in this range are as `nn.Linear` and `nn.Conv2d` draw them: $\sigma_w^2 = 1/3$."""
    weights = profile.facts.weights if profile.facts else ()
    found = sorted(w.variance for w in weights if law.layers[0] < w.block <= law.layers[1])
    return bool(found) and abs(found[len(found) // 2] * 3 - 1) < NEAR


def _factors(profile: Profile, law: Law) -> tuple[Factor, ...]:
    if profile.attribution is None:
        return ()
    return profile.attribution.within(range(law.layers[0] + 1, law.layers[1] + 1))


def _by_kind(factors: tuple[Factor, ...], direction: Direction) -> dict[str, float]:
    found: dict[str, float] = {}
    for factor in factors:
        gain = _gain(factor, direction)
        if gain is not None:
            found[factor.kind] = found.get(factor.kind, 0.0) + gain
    return found


def _gain(factor: Factor, direction: Direction) -> float | None:
    return factor.forward if direction == "forward" else factor.backward


def _mean_gain(factors: list[Factor], direction: Direction) -> float:
    total = sum(_gain(factor, direction) or 0.0 for factor in factors)
    return math.exp(total / sum(factor.ops for factor in factors))


def _weights(layer: Layerwise, direction: Direction) -> str:
    chi = layer.slope * layer.weight
    what = "the gradient's power" if direction == "backward" else "the mean square"
    return (
        f"all of it is the weights: they multiply {what} by {layer.weight:.3g} a layer where {layer.activation}, "
        f"which keeps {layer.slope:.3g}, needs {layer.needed:.3g}; together {chi:.3g}"
    )


def _listed(shares: dict[str, float], total: float, layer: Layerwise | None, law: Law) -> str:
    """Shares of the whole; where kinds work against each other, so that shares mislead, the factor a block of each."""
    ordered = sorted(shares, key=lambda kind: -shares[kind] / total)
    told = [kind for kind in ordered if abs(shares[kind] / total) > SMALL_SHARE][:3]
    if any(shares[kind] / total < -SMALL_SHARE for kind in shares):
        factors = [f"{_NAMES[kind]} {math.exp(shares[kind] / (law.blocks - 1)):.3g}" for kind in told]
        return f"factors a block: {', '.join(factors)}"
    return ", ".join(
        f"{100 * shares[kind] / total:.0f} % of it is {_told(kind, layer, law.direction)}" for kind in told
    )


def _told(kind: str, layer: Layerwise | None, direction: Direction) -> str:
    if kind == "activation" and layer is not None:
        most = max_slope_square(layer.activation)
        if direction == "backward" and most is not None:
            slope = f"E[phi'^2] = {layer.slope:.3g} a layer; at most {most:.3g}"
            return f"the slope of {layer.activation} ({slope})"
        return f"{layer.activation} ({layer.slope:.3g} a layer)"
    if kind == "weight" and layer is not None:
        return f"the weights ({layer.weight:.3g} a layer)"
    return _NAMES[kind]
