"""How the first step changes with width and batch, and which rate, epsilon, decay and initialization follow from it.

Width: a step changes what a layer computes by an amount that does not depend on width if the entries of its update
fall like 1/width in matrices that grow on both sides (hidden) or at their input (output matrices), and stay equal in
all others. That is measured for each kind of tensor, so the rule holds for any optimizer and for groups that already
follow muP. Batch: the noise of the gradient over samples says up to which batch a larger rate pays. Duration cannot be
seen in one step: what is said about it is a law with its source.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from leadline.case import Case
from leadline.ops.optimizers import Family, decay_share, family_of, group_rule
from leadline.readings.depth_law import fit_exponent
from leadline.records import (
    AxisPoint,
    DecayMemory,
    Exponent,
    Optimizer,
    ScalingRule,
    TensorSize,
    Update,
)
from leadline.records.forecast import MAX_FLAT_EXPONENT, Axis, TensorKind
from leadline.tracer.names import index_model
from leadline.tracer.optimizer import read_optimizer

MUP = "Yang et al. 2022 (muP), arXiv 2203.03466"
SPECTRAL = "Yang et al. 2023 (a spectral condition for feature learning), arXiv 2310.17813"
COMPLETEP = "Dey et al. 2025 (CompleteP), arXiv 2505.01618"
COMPLETED_P = "Mlodozeniec et al. 2025 (Complete(d)P), arXiv 2512.22382"
SQUARE_ROOT = "Malladi et al. 2022, arXiv 2205.10287"
LINEAR = "Goyal et al. 2017, arXiv 1706.02677"
TIMESCALE = "Wang and Aitchison 2024, arXiv 2405.13698"

KIND_NAMES: dict[TensorKind, str] = {
    "hidden": "hidden matrices",
    "input": "input matrices",
    "output": "output matrices",
    "vector": "biases and gains",
}
# Derived: the input of a hidden or output matrix has `width` entries, and the update follows all of them; see `MUP`.
WANTED_UPDATE: dict[TensorKind, float] = {"hidden": -1.0, "input": 0.0, "output": -1.0, "vector": 0.0}
# Derived: a spectral step keeps its largest singular value at every width, unless it is matched to AdamW's rms, which
# multiplies it by the root of width. Its rms depends on the rank of the gradient, and so on the batch.
WANTED_SPECTRAL_RATE = {"match_rms_adamw": -0.5}
# Cited: Yang et al. 2022, table 3: standard deviations of the initialization.
WANTED_WEIGHT: dict[TensorKind, float] = {"hidden": -0.5, "input": 0.0, "output": -1.0}
# Cited: Malladi et al. 2022 (Adam) and Goyal et al. 2017 (SGD): power of the batch in the rate.
BATCH_RATE_POWER: dict[Family, float] = {"adam": 0.5, "sgd": 1.0}
# Heuristic: how far beyond the measured values a setting is given in numbers.
PROJECTED_MULTIPLE = 4
# Derived: with a memory of ten runs decay removes 1 - exp(-1/10), a tenth, of a weight; with one of a tenth of the run
# exp(-5), less than 1 %, of the first half of the run's updates is left.
MAX_MEMORY_RUNS = 10.0
MIN_MEMORY_RUNS = 0.1


# Tensors by kind: which of their sides grow with width.


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorShape:
    """The shape of a parameter, and which of its axes is summed over in the forward pass; None: it is none."""

    shape: tuple[int, ...]
    input_axis: int | None


def shapes_of(model: nn.Module) -> dict[str, TensorShape]:
    """The parameters of a model by name."""
    shapes = {}
    for named in index_model(model).parameters.values():
        owner_path, _, _ = named.names[0].rpartition(".")
        owner = model.get_submodule(owner_path) if owner_path else model
        shape = tuple(named.item.shape)
        shapes[named.names[0]] = TensorShape(shape=shape, input_axis=_input_axis(owner, shape))
    return shapes


def _input_axis(owner: nn.Module, shape: tuple[int, ...]) -> int | None:
    if len(shape) < 2 or isinstance(owner, nn.Embedding):
        return None
    return 0 if type(owner).__name__ == "Conv1D" else 1  # transformers' Conv1D holds the transposed matrix


def kinds_of(narrow: Mapping[str, TensorShape], wide: Mapping[str, TensorShape]) -> dict[str, TensorKind]:
    """The kind of each parameter that the two networks have in common and that grows with width."""
    kinds: dict[str, TensorKind] = {}
    for name in narrow.keys() & wide.keys():
        small, large = narrow[name], wide[name]
        if len(small.shape) != len(large.shape):
            continue
        axes = [i for i, (a, b) in enumerate(zip(small.shape, large.shape, strict=True)) if a != b]
        if not axes:
            continue
        if len(small.shape) < 2:
            kinds[name] = "vector"
        elif len(axes) > 1:
            kinds[name] = "hidden"
        else:
            kinds[name] = "output" if axes[0] == large.input_axis else "input"
    return kinds


def point_along(
    update: Update, case: Case, kinds: Mapping[str, TensorKind], value: int, seed: int
) -> AxisPoint:
    """The quantities of one network that a law along width or batch is fitted on."""
    return AxisPoint(
        value=value,
        seed=seed,
        parameters=sum(each.count for each in update.parameters),
        loss=update.loss,
        grad_square=update.grad_square,
        update_norm=update.update_norm,
        function_change=update.function_response,
        blocks_change=update.blocks_response,
        safe_lr=None if update.safe_lr_is_bound else update.safe_lr,
        sizes=_sizes(update, case, kinds),
    )


def _sizes(update: Update, case: Case, kinds: Mapping[str, TensorKind]) -> tuple[TensorSize, ...]:
    if case.joint_optimizer is None:
        return ()
    optimizer = read_optimizer(case.joint_optimizer, index_model(case.model))
    groups = {name: group for group in optimizer.groups for name in group.parameters}
    sizes = []
    for kind in KIND_NAMES:
        steps = [each for each in update.parameters if kinds.get(each.name) == kind]
        if not steps:
            continue
        entries = sum(each.count for each in steps)
        held = [groups[each.name] for each in steps if each.name in groups]
        epsilons = [_positive(group.options.get("eps")) for group in held]
        known = [each for each in epsilons if each is not None]
        sizes.append(
            TensorSize(
                kind=kind,
                weight=math.sqrt(sum(each.weight_norm**2 for each in steps) / entries),
                gradient=math.sqrt(sum(each.grad_norm**2 for each in steps) / entries),
                update=math.sqrt(sum(each.update_norm**2 for each in steps) / entries),
                eps=statistics.geometric_mean(known) if known else None,
                decay=statistics.fmean(decay_share(optimizer, group) for group in held) if held else 0.0,
                lr=statistics.fmean(group.lr or 0.0 for group in held) if held else None,
            )
        )
    return tuple(sizes)


def _positive(option: Any) -> float | None:
    return float(option) if isinstance(option, int | float) and option > 0 else None


# Exponents, and the rules that follow from them.


def fit_along(points: Sequence[AxisPoint], values: Sequence[int]) -> dict[str, Exponent]:
    """The exponent of each quantity that is positive at two values or more."""
    readers: dict[str, Callable[[AxisPoint], float | None]] = {
        "function_change": lambda point: point.function_change,
        "blocks_change": lambda point: point.blocks_change,
        "safe_rate": lambda point: point.safe_lr,
        "grad_square": lambda point: point.grad_square,
        "update_norm": lambda point: point.update_norm,
    }
    for kind in KIND_NAMES:
        for part in ("weight", "gradient", "update", "eps", "decay", "lr"):
            readers[f"{kind}_{part}"] = _size_reader(kind, part)
    seeds = sorted({point.seed for point in points})
    exponents = {}
    for name, read in readers.items():
        curves = [_log_curve([point for point in points if point.seed == seed], read) for seed in seeds]
        exponent = fit_exponent(curves, values)
        if exponent is not None:
            exponents[name] = exponent
    return exponents


def _log_curve(points: Sequence[AxisPoint], read: Callable[[AxisPoint], float | None]) -> dict[int, float]:
    """Logarithm of a quantity by value of the axis, where it is positive."""
    sizes = {point.value: read(point) for point in points}
    return {
        value: math.log(size) for value, size in sizes.items() if size is not None and 0 < size < math.inf
    }


def _size_reader(kind: TensorKind, part: str) -> Callable[[AxisPoint], float | None]:
    def read(point: AxisPoint) -> float | None:
        size = next((each for each in point.sizes if each.kind == kind), None)
        return None if size is None else getattr(size, part)

    return read


def spectral_rate_power(case: Case) -> float | None:
    """The power of width that the rate of a spectral optimizer such as Muon should have; None: there is none."""
    if case.joint_optimizer is None:
        return None
    optimizer = read_optimizer(case.joint_optimizer, index_model(case.model))
    for group in optimizer.groups:
        rule = group_rule(optimizer, group)
        if rule is not None and rule.step == "spectral":
            return WANTED_SPECTRAL_RATE.get(str(group.options.get("adjust_lr_fn")), 0.0)
    return None


def width_rules(
    exponents: Mapping[str, Exponent], spectral_power: float | None = None
) -> tuple[ScalingRule, ...]:
    """What each setting must be multiplied by, as a power of width; see `spectral_rate_power`."""
    rules = []
    for kind, title in KIND_NAMES.items():
        update, weight = exponents.get(f"{kind}_update"), exponents.get(f"{kind}_weight")
        rate = exponents.get(f"{kind}_lr")
        if update is None:
            continue
        wanted, now, source = WANTED_UPDATE[kind], update, MUP
        if kind == "hidden" and spectral_power is not None and rate is not None:
            wanted, now, source = spectral_power, rate, SPECTRAL
        rate_power = _power(wanted, now)
        rules.append(
            ScalingRule(
                setting=f"learning rate, {title}",
                power=rate_power,
                wanted=wanted,
                now=now,
                reason="a step changes what the layer computes by as much at every width",
                source=source,
            )
        )
        if kind in WANTED_WEIGHT and weight is not None:
            rules.append(_init_rule(kind, title, weight))
        rules += _epsilon_and_decay(exponents, kind, title, rate_power)
    return tuple(rules)


def _init_rule(kind: TensorKind, title: str, weight: Exponent) -> ScalingRule:
    reason = "activations have the same size at every width"
    if kind == "output":
        reason = "the first outputs do not depend on the last layer's noise; a standard -0.5 keeps their size instead"
    return ScalingRule(
        setting=f"initial standard deviation, {title}",
        power=_power(WANTED_WEIGHT[kind], weight),
        wanted=WANTED_WEIGHT[kind],
        now=weight,
        reason=reason,
        source=MUP,
    )


def _epsilon_and_decay(
    exponents: Mapping[str, Exponent], kind: TensorKind, title: str, rate_power: float
) -> list[ScalingRule]:
    rules = []
    eps, gradient = exponents.get(f"{kind}_eps"), exponents.get(f"{kind}_gradient")
    if eps is not None and gradient is not None:
        rules.append(
            ScalingRule(
                setting=f"epsilon, {title}",
                power=_power(gradient.value, eps),
                wanted=gradient.value,
                now=eps,
                reason="epsilon stays the same share of the gradient's entries, whose power was measured",
                source=COMPLETEP,
            )
        )
    decay = exponents.get(f"{kind}_decay")
    if decay is not None:
        power = -decay.value - rate_power
        rules.append(
            ScalingRule(
                setting=f"weight decay, {title}",
                power=0.0 if abs(power) < MAX_FLAT_EXPONENT else power,
                wanted=0.0,
                now=decay,
                reason="decay takes the same share of a weight per step, once the rate has changed",
                source=COMPLETEP,
            )
        )
    return rules


def _power(wanted: float, now: Exponent) -> float:
    """The power that is missing; 0 if it is too small to be told from none."""
    missing = wanted - now.value
    return 0.0 if abs(missing) < MAX_FLAT_EXPONENT else missing


def batch_rules(optimizer: str, *, decays: bool, has_epsilon: bool) -> tuple[ScalingRule, ...]:
    """What each setting must be multiplied by, as a power of the batch: laws, valid below the critical batch."""
    family = family_of(optimizer)
    if family is None:
        return ()
    rate = BATCH_RATE_POWER[family]
    source = SQUARE_ROOT if family == "adam" else LINEAR
    rules = [
        ScalingRule(
            setting="learning rate",
            power=rate,
            reason="the noise of the steps over the same number of samples stays",
            source=source,
        )
    ]
    if has_epsilon:
        rules += [
            ScalingRule(
                setting="epsilon",
                power=-0.5,
                reason="the gradient's entries, which are mostly noise, shrink",
                source=SQUARE_ROOT,
            ),
            ScalingRule(
                setting="1 - beta1 and 1 - beta2",
                power=1.0,
                reason="running means cover the same number of samples",
                source=SQUARE_ROOT,
            ),
        ]
    if decays:
        rules.append(
            ScalingRule(
                setting="weight decay",
                power=1.0 - rate,
                reason="decay forgets over the same number of samples",
                source=COMPLETED_P,
            )
        )
    return tuple(rules)


# Advice in words, and in numbers beyond what was measured.


def advise_along(
    axis: Axis,
    values: Sequence[int],
    exponents: Mapping[str, Exponent],
    rules: Sequence[ScalingRule],
    lr: float | None,
) -> tuple[str, ...]:
    """What the measured exponents mean for a network four times as wide as the widest."""
    sentences = []
    change = exponents.get("function_change")
    if axis == "width" and change is not None:
        sentences.append(_change_sentence(change, values, lr))
    safe = exponents.get("safe_rate")
    if safe is not None:
        sentences.append(f"the safe rate goes like {axis}^{safe.value:+.2f}{_unclear(safe)}")
    # Epsilon is left to the table: it matters only where it is close to the gradient's entries.
    unmet = [rule for rule in rules if rule.power and not rule.setting.startswith("epsilon")]
    if axis == "width":
        if unmet:
            new = PROJECTED_MULTIPLE * values[-1]
            factors = (
                f"{rule.setting} x {_factor(rule, new / values[0])} (width^{rule.power:+.2f})"
                for rule in unmet
            )
            sentences.append(f"for width {new} instead of {values[0]}: {'; '.join(factors)}")
        elif rules:
            sentences.append("rates, decay and initialization follow muP: what is tuned at one width holds")
    return tuple(sentences)


def _change_sentence(change: Exponent, values: Sequence[int], lr: float | None) -> str:
    law = f"the step changes the function like width^{change.value:+.2f}"
    if change.verdict == "unclear":
        return f"{law}, but the seeds disagree too much to say more: use more seeds or wider networks"
    if change.verdict == "flat" or abs(change.value) < MAX_FLAT_EXPONENT:
        return f"{law}: the same rate serves every width"
    new = PROJECTED_MULTIPLE * values[-1]
    number = "" if lr is None else f", from {lr:.3g} to {lr * (new / values[0]) ** -change.value:.2g}"
    return (
        f"{law}: with one rate for all, it must change like width^{-change.value:+.2f} "
        f"(at width {new} instead of {values[0]}{number})"
    )


def _unclear(exponent: Exponent) -> str:
    return ", but the seeds disagree" if exponent.verdict == "unclear" else ""


def _factor(rule: ScalingRule, multiple: float) -> str:
    return f"{multiple**rule.power:.2g}"


# The length of the run.


def read_decay_memory(case: Case, steps: int) -> DecayMemory | None:
    """Weight decay's memory beside the planned length of the run; None if nothing decays."""
    if case.joint_optimizer is None:
        return None
    optimizer = read_optimizer(case.joint_optimizer, index_model(case.model))
    shares = [decay_share(optimizer, group) for group in optimizer.groups]
    memories = [1 / share for share in shares if share > 0]
    if not memories:
        return None
    shortest, longest = min(memories), max(memories)
    return DecayMemory(
        steps=steps,
        shortest=shortest,
        longest=longest,
        advice=(_memory_sentence(shortest, longest, steps), *_duration_laws(optimizer)),
    )


def _memory_sentence(shortest: float, longest: float, steps: int) -> str:
    span = f"{shortest:.3g}" if longest < 1.01 * shortest else f"{shortest:.3g} to {longest:.3g}"
    memory = f"weight decay remembers {span} steps (1 / (rate x decay)), and the run has {steps}"
    if shortest > MAX_MEMORY_RUNS * steps:
        removed = -math.expm1(-steps / shortest)
        return f"{memory}: at a constant rate it removes only {removed:.1%} of a weight, so it hardly acts"
    if longest < MIN_MEMORY_RUNS * steps:
        left = math.exp(-steps / 2 / longest)
        return (
            f"{memory}: at a constant rate {left:.1g} of what the first half of the run taught is left; "
            "lower the decay unless early data may be forgotten"
        )
    return f"{memory}, {shortest / steps:.2g} of it: of the order of the run"


def _duration_laws(optimizer: Optimizer) -> list[str]:
    """How decay and rate change for a longer run; laws, because one step shows nothing of it."""
    is_decoupled = any(
        rule is not None and rule.decay == "decoupled"
        for rule in (group_rule(optimizer, group) for group in optimizer.groups)
    )
    if not is_decoupled:
        return []
    return [
        "law, not measured: for a run k times as long at the same batch, Complete(d)P multiplies rate and decay of "
        f"AdamW by k^-0.5 ({COMPLETED_P}), so that the memory stays the same share of the run; with the rate kept, "
        f"decay alone by k^-1 does the same ({TIMESCALE})"
    ]
