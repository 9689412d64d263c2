"""The table of optimizers: what each does with the gradient's scale, with momentum and with weight decay.

To teach Leadline an optimizer, add a row. Rules that read `momentum` or `weight_decay` ask this table, because the same
option means different things: SGD adds decay to the gradient and sums both in its momentum, AdamW and Muon shrink the
weights directly.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from leadline.records import Optimizer, ParamGroup

Family = Literal["sgd", "adam"]
StepKind = Literal["linear", "rescaled", "sign", "spectral"]
DecayKind = Literal["coupled", "decoupled", "fixed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerRule:
    r"""What one step does with gradient $g$, rate $\eta$ and decay $\lambda$.

    `step`: *linear* in the gradient (SGD); *rescaled* by a running measure of its size (Adam, Shampoo); its *sign*
    (Lion); *spectral*, the momentum of a matrix with all singular values made equal (Muon).

    `decay`: *coupled* adds $\lambda w$ to the gradient; *decoupled* takes $\eta\lambda$ of each weight; *fixed* takes
    $\lambda$ of it, whatever the rate.
    """

    step: StepKind
    decay: DecayKind
    sums_momentum: bool = False
    r"""Momentum $\mu$ is a sum of $1/(1-\mu)$ gradients (heavy ball); otherwise it is a mean, or has no say in the
    length of the step."""

    @property
    def family(self) -> Family:
        """`sgd` if the step is linear in the gradient, `adam` if its size ignores the gradient's scale.

        The depth law follows from it: see `leadline.nn.param_groups`.
        """
        return "sgd" if self.step == "linear" else "adam"


_HEAVY_BALL = OptimizerRule(step="linear", decay="coupled", sums_momentum=True)
_RESCALED_L2 = OptimizerRule(step="rescaled", decay="coupled")
_RESCALED = OptimizerRule(step="rescaled", decay="decoupled")
_SIGN = OptimizerRule(step="sign", decay="decoupled")
_SPECTRAL = OptimizerRule(step="spectral", decay="decoupled")

# Names in lower case. The decay is that of the class's default; an option of the group may say otherwise. Where the
# name of a class is not here, the first row whose name it contains counts ("PagedAdamW8bit" is an AdamW), so that a row
# stands before those whose names are part of its own.
RULES: Mapping[str, OptimizerRule] = {
    "muon": _SPECTRAL,
    "dion": _SPECTRAL,
    "scion": _SPECTRAL,
    "sgdschedulefree": OptimizerRule(step="linear", decay="coupled"),
    "schedulefreesgd": OptimizerRule(step="linear", decay="coupled"),
    "schedulefree": _RESCALED,
    "signsgd": _SIGN,
    "signum": _SIGN,
    "lion": _SIGN,
    "tiger": _SIGN,
    "sophia": _RESCALED,
    "soap": _RESCALED,
    "shampoo": _RESCALED_L2,
    "adafactor": _RESCALED,
    "came": _RESCALED,
    "prodigy": _RESCALED,
    "lamb": _RESCALED,
    "stableadamw": _RESCALED,
    "adamw": _RESCALED,
    "adamax": _RESCALED_L2,
    "sparseadam": _RESCALED_L2,
    "ademamix": _RESCALED,
    "nadam": _RESCALED_L2,
    "radam": _RESCALED_L2,
    "adam": _RESCALED_L2,
    "adagrad": _RESCALED_L2,
    "adadelta": _RESCALED_L2,
    "rmsprop": replace(_RESCALED_L2, sums_momentum=True),
    "rprop": _SIGN,
    "sign": _SIGN,
    "psgd": _RESCALED,
    "kron": _RESCALED,
    "adan": _RESCALED,
    "mars": _RESCALED,
    "asgd": OptimizerRule(step="linear", decay="coupled"),
    "sgd": _HEAVY_BALL,
}
# Rows whose names are part of other words (lambda, design, camel); they count only for a class of exactly this name.
_WHOLE_NAMES = frozenset({"sign", "came", "lamb", "tiger", "mars", "adan", "kron"})
# Derived: an optimizer whose group counts Newton-Schulz steps orthogonalizes, whatever its class is called.
SPECTRAL_OPTIONS = ("ns_steps", "ns_coefficients", "ns_iterations", "newton_schulz_steps")
# Options, and attributes of some optimizers, that decide whether decay is decoupled.
DECOUPLING_OPTIONS = ("decoupled_weight_decay", "weight_decouple", "adam_w_mode", "adamw_mode")
FIXED_DECAY_OPTIONS = ("fixed_decay", "decoupled_wd")

_SEPARATOR = " + "


def joint_name(names: Iterable[str]) -> str:
    """The name of several optimizers that step together: "Muon + AdamW"; two of one kind share a name."""
    return _SEPARATOR.join(dict.fromkeys(names))


def family_of(optimizer: str) -> Family | None:
    """The family of an optimizer by its name; None if unknown.

    Optimizers that step together (see `joint_name`) have a family if all of them have the same one.
    """
    rules = [find_rule(each) for each in optimizer.split(_SEPARATOR)]
    families = {None if rule is None else rule.family for rule in rules}
    return families.pop() if len(families) == 1 else None


def row_name(name: str) -> str | None:
    """The name of the row that describes a class of this name; None if there is none."""
    lower = name.lower().replace("_", "")
    if lower in RULES:
        return lower
    return next((row for row in RULES if row in lower and row not in _WHOLE_NAMES), None)


def find_rule(name: str, options: Mapping[str, Any] | None = None) -> OptimizerRule | None:
    """What a step of the class `name` does with a group of these `options`; None if that is not known."""
    options = options or {}
    row = _row_by_options(name, options) or row_name(name)
    if row is None:
        return None
    rule = RULES[row]
    if any(options.get(key) for key in FIXED_DECAY_OPTIONS):
        return replace(rule, decay="fixed")
    stated = [bool(options[key]) for key in DECOUPLING_OPTIONS if options.get(key) is not None]
    return replace(rule, decay="decoupled" if stated[0] else "coupled") if stated else rule


def _row_by_options(name: str, options: Mapping[str, Any]) -> str | None:
    """The row that the group itself names: optimizers that combine Muon with Adam mark their groups."""
    uses_muon = options.get("use_muon")
    if uses_muon is not None:
        return "muon" if uses_muon else "adamw"
    algorithm = options.get("algorithm")
    if isinstance(algorithm, str) and (row := row_name(algorithm)) is not None:
        return row
    return "muon" if row_name(name) is None and any(key in options for key in SPECTRAL_OPTIONS) else None


# The same for the record of an optimizer.


def group_rule(optimizer: Optimizer, group: ParamGroup) -> OptimizerRule | None:
    """What a step does with the parameters of `group`; None if that is not known."""
    return find_rule(group.known_as or optimizer.kind_of(group), group.options)


def momentum_gain(optimizer: Optimizer, group: ParamGroup) -> float:
    r"""A sustained step over the first one: $(1 - d)/(1-\mu)$ where momentum $\mu$ sums gradients, else 1.

    $d$ is the dampening. An optimizer that the table does not know counts as one that sums.
    """
    rule = group_rule(optimizer, group)
    return 1.0 if rule is not None and not rule.sums_momentum else summed_gradients(group.options)


def summed_gradients(options: Mapping[str, Any]) -> float:
    r"""The sum of a steady gradient's weights in heavy-ball momentum $\mu$ with dampening $d$: $(1-d)/(1-\mu)$."""
    momentum = _number(options.get("momentum"))
    if not 0 < momentum < 1:
        return 1.0
    return max((1 - _number(options.get("dampening"))) / (1 - momentum), 1.0)


def decay_share(optimizer: Optimizer, group: ParamGroup) -> float:
    r"""The share of a weight that decay alone removes per step.

    Decoupled decay removes $\eta\lambda$, and *fixed* decay $\lambda$; coupled decay is summed by momentum like the
    gradient.
    """
    rule = group_rule(optimizer, group)
    if rule is not None and rule.decay == "fixed":
        return group.weight_decay
    share = (group.lr or 0.0) * group.weight_decay
    return (
        share if rule is not None and rule.decay == "decoupled" else share * momentum_gain(optimizer, group)
    )


def _number(option: Any) -> float:
    return float(option) if isinstance(option, int | float) and not isinstance(option, bool) else 0.0
