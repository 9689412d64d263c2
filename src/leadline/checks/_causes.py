r"""What caused a change of the signal over a range of blocks, and what to do about it.

A weight layer and the activation after it make one factor per layer, $\chi = \sigma_w^2\, E[\phi'^2]$. If weights of
ordinary size can compensate for the slope (ReLU needs $\sigma_w^2 = 2$), all of $\ln \chi$ is blamed on the weights. If
they cannot (the sigmoid needs at least 16), weights and activation are both named, each with its share.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from leadline.checks._check import Symptom
from leadline.checks._laws import Law, backward_laws, forward_laws
from leadline.ops.gaussian import max_slope_square
from leadline.records import DepthBlock, Direction, Factor, Profile, Severity
from leadline.text import layer_label, plural

# Heuristic: weight gain sigma_w^2 that is still ordinary. Of PyTorch's activations only the sigmoids need more (16 and
# up); tanh needs 1.
MAX_REPAIRABLE_GAIN = 4.0
# Derived: sigma_w^2 of PyTorch's default for nn.Linear and nn.Conv2d, uniform in +-1/sqrt(fan_in).
DEFAULT_INIT_GAIN = 1 / 3
# Heuristic: relative distance from DEFAULT_INIT_GAIN; the variance of 1000 random weights scatters by 4 %.
MAX_GAIN_SCATTER = 0.1
# Heuristic: kinds of op with a smaller share of the change are not mentioned.
MIN_MENTIONED_SHARE = 0.03
# Heuristic: a sentence stays readable with at most three causes.
MAX_MENTIONED_KINDS = 3
# Heuristic: below this gain per block, the lost percentage would be rounded to 100 %.
MIN_GAIN_AS_PERCENT = 0.01

DEFAULT_ACTION = "Add a skip connection around each block, or put `nn.LayerNorm` into each block."
_KIND_NAMES = {
    "activation": "the activations",
    "weight": "the weights",
    "norm": "the norms",
    "attention": "attention",
    "product": "products of signals",
    "skip": "scaled skips",
    "branch": "residual branches",
    "scale": "scales and biases",
    "pool": "pooling",
    "loss": "the loss",
    "rest": "unidentified ops",
}
_ACTIVATION_NAMES = {
    "relu": "ReLU",
    "relu6": "ReLU6",
    "gelu": "GELU",
    "silu": "SiLU",
    "elu": "ELU",
    "selu": "SELU",
    "celu": "CELU",
    "mish": "Mish",
    "leaky_relu": "leaky ReLU",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerGain:
    """What weights and activations of a range of blocks multiply the moment by, per layer."""

    activation: str
    slope: float
    """Factor per layer of the activation."""
    weight: float
    r"""Factor per layer of the weights, $\sigma_w^2$."""

    @property
    def needed(self) -> float:
        """The factor of the weights at which both together preserve the moment.

        For a saturated activation it is the one that applies once the activation is no longer saturated.
        """
        return 1 / self.slope if 1 / self.slope <= MAX_REPAIRABLE_GAIN else 1 / self.max_slope

    @property
    def repairable(self) -> bool:
        return self.needed <= MAX_REPAIRABLE_GAIN

    @property
    def max_slope(self) -> float:
        """The largest squared slope of the activation; 1 if the table does not have it."""
        largest = max_slope_square(self.activation)
        return 1.0 if largest is None else largest

    @property
    def total(self) -> float:
        return self.weight * self.slope

    @property
    def activation_name(self) -> str:
        return _ACTIVATION_NAMES.get(self.activation, self.activation)


def law_symptom(profile: Profile, law: Law, message: str, *, severity: Severity | None = None) -> Symptom:
    """The symptom of a check of a depth law: its message and the cause, and what to do about this cause.

    If single blocks make the change, they are named instead: it is not a law then.
    """
    if law.one_block:
        return Symptom(
            severity=severity or law.severity,
            where=law.cliffs[0][0].name,
            message=_describe_cliff(law),
            action=_cliff_action(profile, law.cliffs[0][0]),
            evidence={**law.evidence(), "cliff_e_folds": law.cliffs[0][1]},
            layers=law.layers,
        )
    cause = describe_cause(profile, law)
    return Symptom(
        severity=severity or law.severity,
        where=law.where,
        message=f"{message}; {cause}" if cause else message,
        action=law_action(profile, law),
        evidence=law.evidence(),
        layers=law.layers,
    )


def _describe_cliff(law: Law) -> str:
    """What the largest cliff does, and what the other blocks do."""
    block, step = law.cliffs[0]
    what = "the gradient's power" if law.direction == "backward" else "the signal's mean square"
    verb = "grows" if step > 0 else "falls"
    more = plural(len(law.cliffs) - 1, "further block")
    others = f" and {more} like it" if len(law.cliffs) > 1 else ""
    return (
        f"{what} {verb} by a factor of {math.exp(abs(step)):.2g} across {layer_label(block.name)}{others}; the rest of "
        f"the depth changes it by {law.gain:.3g} per block"
    )


def _cliff_action(profile: Profile, block: DepthBlock) -> str:
    """How to even out one block; a stream that is small beside what a block adds to it is scaled up before."""
    label, place = layer_label(block.name), profile.blocks.index(block)
    before = profile.blocks[place - 1] if place else block
    entering, leaving = before.forward_ms, block.forward_ms
    if block.residual is not None and entering and leaving and leaving > 2 * entering:
        scale = math.sqrt(leaving / entering - 1)
        return (
            f"Multiply what enters {label} by {scale:.2g} (for example the initial embedding), or what it adds to the "
            f"stream by {1 / scale:.2g}."
        )
    return f"Rescale the initial weights of {label}, or put `nn.LayerNorm` into it."


def lost_per_block(gain: float) -> str:
    """A decay in words: "loses 20 % of"; for a strong decay "keeps only 0.001 of"."""
    return (
        f"loses {100 * (1 - gain):.2g} % of" if gain >= MIN_GAIN_AS_PERCENT else f"keeps only {gain:.2g} of"
    )


def describe_cause(profile: Profile, law: Law) -> str:
    """A clause that names the cause of the change: "weight gain is 0.33 per layer but ReLU needs 2"; "" if unknown."""
    shares = _change_by_kind(profile, law)
    total = sum(shares.values())
    if not shares or abs(total) < 1e-9:
        return ""
    layer = layer_gain(profile, law)
    if layer is not None and _blames_weights(layer, shares):
        return f"weight gain is {layer.weight:.3g} per layer but {layer.activation_name} needs {layer.needed:.2g}"
    return _list_causes(shares, total, layer, law)


def law_action(profile: Profile, law: Law) -> str:
    """What to do about the change: one sentence for the main cause, or for any stack if the cause is unknown."""
    if law.shared:
        return (
            "Initialize the recurrent weight with `nn.init.orthogonal_(weight)` or use a gated cell such as "
            "`nn.LSTM`."
        )
    shares = _change_by_kind(profile, law)
    total = sum(shares.values())
    if not shares or abs(total) < 1e-9:
        return DEFAULT_ACTION
    layer = layer_gain(profile, law)
    if layer is not None and _blames_weights(layer, shares):
        return init_action(layer)
    return _action_for_kind(max(shares, key=lambda kind: shares[kind] / total), profile, law, layer)


def init_action(layer: LayerGain) -> str:
    """How to initialize weights for this activation, in one sentence."""
    if layer.activation in ("relu", "leaky_relu"):
        call = f'nn.init.kaiming_normal_(layer.weight, nonlinearity="{layer.activation}")'
    else:
        call = f"nn.init.normal_(layer.weight, std=({layer.needed:.2g} / fan_in) ** 0.5)"
    return f"Initialize the weights with `{call}` or add skip connections."


def layer_gain(profile: Profile, law: Law) -> LayerGain | None:
    """Gain of weights and activations in the range; None unless there are both, with only one kind of activation."""
    factors = _factors(profile, law)
    activations = [f for f in factors if f.kind == "activation" and _gain(f, law.direction) is not None]
    weights = [f for f in factors if f.kind == "weight" and _gain(f, law.direction) is not None]
    if not activations or not weights or len({f.op for f in activations}) > 1:
        return None
    slope = _mean_gain(activations, law.direction)
    weight = _mean_gain(weights, law.direction)
    return LayerGain(activation=activations[0].op, slope=slope, weight=weight)


def blamed_on_weights(profile: Profile) -> Iterator[tuple[Law, LayerGain]]:
    """For each plain stream, a law that is caused by the gain of its weights; the backward law if there is one."""
    streams: set[int] = set()
    for law in (*backward_laws(profile), *forward_laws(profile)):
        layer = layer_gain(profile, law)
        plain = not any(profile.blocks[i].residual for i in range(law.layers[0], law.layers[1] + 1))
        if (
            law.first.stream in streams
            or not plain
            or law.normalized
            or layer is None
            or not layer.repairable
        ):
            continue
        streams.add(law.first.stream)
        yield law, layer


def is_default_init(profile: Profile, law: Law) -> bool:
    r"""Whether the weights in this range are those of PyTorch's default initialization: $\sigma_w^2 = 1/3$."""
    weights = profile.facts.weights if profile.facts else ()
    variances = sorted(w.variance for w in weights if law.layers[0] < w.block <= law.layers[1])
    if not variances:
        return False
    return abs(variances[len(variances) // 2] / DEFAULT_INIT_GAIN - 1) < MAX_GAIN_SCATTER


def _blames_weights(layer: LayerGain, shares: dict[str, float]) -> bool:
    own = shares.get("weight", 0.0) + shares.get("activation", 0.0)
    return layer.repairable and abs(own) > (1 - MIN_MENTIONED_SHARE) * abs(sum(shares.values()))


def _factors(profile: Profile, law: Law) -> tuple[Factor, ...]:
    if profile.attribution is None:
        return ()
    return profile.attribution.within(range(law.layers[0] + 1, law.layers[1] + 1))


def _change_by_kind(profile: Profile, law: Law) -> dict[str, float]:
    """The change in e-folds, by kind of op."""
    changes: dict[str, float] = {}
    for factor in _factors(profile, law):
        gain = _gain(factor, law.direction)
        if gain is not None:
            changes[factor.kind] = changes.get(factor.kind, 0.0) + gain
    return changes


def _gain(factor: Factor, direction: Direction) -> float | None:
    return factor.forward if direction == "forward" else factor.backward


def _mean_gain(factors: list[Factor], direction: Direction) -> float:
    total = sum(_gain(factor, direction) or 0.0 for factor in factors)
    return math.exp(total / sum(factor.ops for factor in factors))


def _list_causes(shares: dict[str, float], total: float, layer: LayerGain | None, law: Law) -> str:
    """Share of each kind; the factor per block instead if kinds work against each other, so that shares mislead."""
    ordered = sorted(shares, key=lambda kind: -shares[kind] / total)
    mentioned = [kind for kind in ordered if abs(shares[kind] / total) > MIN_MENTIONED_SHARE]
    mentioned = mentioned[:MAX_MENTIONED_KINDS]
    if any(share / total < -MIN_MENTIONED_SHARE for share in shares.values()):
        factors = [
            f"{_KIND_NAMES[kind]} {math.exp(shares[kind] / (law.blocks - 1)):.3g}" for kind in mentioned
        ]
        return f"the factors per block are {', '.join(factors)}"
    parts = [
        (f"{100 * shares[kind] / total:.0f} %", _describe_kind(kind, layer, law.direction))
        for kind in mentioned
    ]
    (share, kind), *others = parts
    return ", ".join(
        [f"{share} of the change comes from {kind}", *(f"{share} from {kind}" for share, kind in others)]
    )


def _describe_kind(kind: str, layer: LayerGain | None, direction: Direction) -> str:
    if kind == "activation" and layer is not None:
        largest = max_slope_square(layer.activation)
        if direction == "backward" and largest is not None:
            numbers = f"E[phi'^2] = {layer.slope:.3g} per layer, at most {largest:.3g}"
            return f"the slope of {layer.activation_name} ({numbers})"
        return f"{layer.activation_name} ({layer.slope:.3g} per layer)"
    if kind == "weight" and layer is not None:
        return f"the weights ({layer.weight:.3g} per layer)"
    return _KIND_NAMES[kind]


def _action_for_kind(kind: str, profile: Profile, law: Law, layer: LayerGain | None) -> str:
    if kind in ("activation", "weight") and layer is not None and layer.repairable:
        return init_action(layer)
    if kind == "activation" and layer is not None:
        return f"Replace {layer.activation_name} with `nn.ReLU()`, or put `nn.LayerNorm` before it in each block."
    if kind == "weight":
        weights = [f for f in _factors(profile, law) if f.kind == "weight"]
        factor = _mean_gain(weights, law.direction) ** -0.5
        return f"Multiply the initial weights by {factor:.2g}, or put `nn.LayerNorm` into each block."
    if kind == "branch":
        scale = f"1/sqrt({law.blocks}) = {law.blocks**-0.5:.2g}"
        return f"Put `nn.LayerNorm` before each residual branch, or multiply each branch by {scale}."
    if kind == "skip":
        return "Remove the factor on the skips, so that each block passes on its input unchanged."
    if kind == "norm":
        return (
            "Add a skip connection around each block, because no initialization changes the gain of its norm."
        )
    if kind == "attention" and law.change > 0:
        return "Normalize queries and keys with `leadline.nn.qk_norm.qk_norm_(attention, head_width)`."
    return DEFAULT_ACTION
