"""The first steps of the given optimizer, as checks read them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import median

import msgspec

from leadline.checks._examples import stack_with, weight
from leadline.ops.optimizers import Family, family_of
from leadline.records import Facts, Optimizer, ParameterStep, ParamGroup, Profile, Severity, Update

KEPT = (
    0.06  # of the loss; calibrated by benchmarks/verdicts: of those that failed only exploding ones had more
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    r"""How far steps move the weights, and what they promise to take off the loss.

    Of a fresh optimiser with momentum $\mu$ the first step is the smallest: once momentum has built up, steps along a
    steady gradient are $1/(1-\mu)$ times as long. That is what counts here.
    """

    family: Family
    optimizer: str
    lr: float
    relative: float
    """Median of the step's size over the weight's; only of weight layers that get a gradient (a zero start)."""
    promised: float
    """The change of the loss, if that were linear, over the loss."""
    kept: float
    """The share of the loss that the first step really took off; below zero if it raised the loss."""

    @property
    def works(self) -> bool:
        """However long the step is, it lowers the loss by a good part."""
        return self.kept > KEPT


def pace_of(profile: Profile) -> Pace | None:
    """None where nothing is known: no step was measured, the optimiser is of unknown kind, the loss is no number."""
    update, family = profile.update, optimizer_family(profile)
    if update is None or family is None or not update.loss > 0:
        return None
    names = {each.name for each in profile.facts.weights} if profile.facts else set()
    moved = [step for step in update.parameters if step.name in names and step.grad_norm > 0]
    ratios = [ratio for step in moved if (ratio := step.update_ratio)]
    built_up = 1 / (1 - _momentum(profile)) if update.steps == 0 else 1.0
    pace = Pace(
        family=family,
        optimizer=update.optimizer,
        lr=update.lr or 0.0,
        relative=median(ratios) * built_up if ratios else math.nan,
        promised=-update.predicted_loss_change / update.loss * built_up,
        kept=-update.measured_loss_change / update.loss,
    )
    return pace if math.isfinite(pace.relative) and math.isfinite(pace.promised) else None


def optimizer_family(profile: Profile) -> Family | None:
    """Whether steps are linear in the gradient or free of its scale; None: not known."""
    return None if profile.optimizer is None else family_of(profile.optimizer.name)


def decay_a_step(profile: Profile) -> float:
    """The largest share of a weight that decay alone takes in a step; 0 without an optimiser."""
    groups = profile.optimizer.groups if profile.optimizer else ()
    return max((_decay(group) for group in groups), default=0.0)


def _decay(group: ParamGroup) -> float:
    return (group.lr or 0.0) * group.weight_decay / (1 - _of(group))


def _momentum(profile: Profile) -> float:
    groups = profile.optimizer.groups if profile.optimizer else ()
    return max((_of(group) for group in groups), default=0.0)


def _of(group: ParamGroup) -> float:
    momentum = group.options.get("momentum", 0.0)
    return float(momentum) if isinstance(momentum, int | float) and 0 <= momentum < 1 else 0.0


def paced(
    *, name: str = "AdamW", relative: float = 0.02, promised: float = 0.5, decay: float = 0.0
) -> Profile:
    """An example: an even stack with a loss of 1 and an optimiser that takes such a step."""
    matrix = weight(0)
    step = ParameterStep(
        name=matrix.name,
        block="layers.0",
        count=matrix.fan_in * matrix.fan_out,
        dtype="float32",
        predicted=-promised,
        grad_norm=1.0,
        update_norm=relative,
        weight_norm=1.0,
    )
    group = ParamGroup(parameters=(matrix.name,), lr=1e-3, weight_decay=decay / 1e-3, options={})
    return msgspec.structs.replace(
        stack_with(Facts(weights=(matrix,))),
        optimizer=Optimizer(name=name, groups=(group,), steps=0),
        update=_update(name, promised, step),
    )


def _update(name: str, promised: float, step: ParameterStep) -> Update:
    return Update(
        optimizer=name,
        steps=0,
        lr=1e-3,
        loss=1.0,
        predicted_loss_change=-promised,
        measured_loss_change=-promised if promised < 1 else 0.1,
        ratio=1.0,
        loss_resolution=1e-7,
        function_change=0.01,
        function_change_relative=0.01,
        function_response=None,
        blocks_response=None,
        grad_square=1.0,
        update_norm=step.update_norm,
        weight_norm=1.0,
        line=(),
        parting=None,
        parting_is_bound=False,
        sharpness=None,
        sharpness_kind=None,
        stability_lr=None,
        safe_lr=None,
        warmup_steps=None,
        confidence="high",
        confidence_why="",
        parameters=(step,),
        blocks=(),
        ranges=(),
    )


# When a step is too long: the user's rate against the rate at which a step is still what its gradient promises.

# Rates over the safe rate, calibrated by benchmarks/update_limits.py:
BEYOND: dict[Family, float] = {"sgd": 10.0, "adam": 64.0}  # farther, at most one network in twenty learned
HOPELESS = 4.0  # times BEYOND; calibrated by benchmarks/update_limits.py: one run in sixty learned there
MIN_BLOCKS = 8  # ours: a sum over fewer blocks is no matter of depth


def excess(update: Update | None) -> float | None:
    """The largest rate over the safe one; None where either is not known."""
    if update is None or not update.lr or not update.safe_lr:
        return None
    return update.lr / update.safe_lr


def lowers(update: Update) -> bool:
    """Whether the step as it is made lowers the loss, by more than rounding."""
    return update.measured_loss_change < -update.loss_resolution


def too_long(update: Update) -> Severity | None:
    """How bad the step is, by the family of the optimiser; an unknown one is judged like Adam, which bears more.

    A step that lowers the loss is not too long, however much more its gradient promised.
    """
    found = excess(update)
    limit = BEYOND[family_of(update.optimizer) or "adam"]
    if found is None or found <= limit or lowers(update):
        return None
    return "error" if found > HOPELESS * limit else "warning"


def spread(profile: Profile) -> float | None:
    """The part of the step that is spread over many repeated blocks; None where one block has most, or blocks are few.

    That is the case in which each block's own step would do, and only their number makes the sum too long.
    """
    if profile.update is None:
        return None
    blocks = [block for block in profile.update.blocks if block.repeated and block.share is not None]
    shares = [block.share for block in blocks if block.share is not None]
    if len(shares) < MIN_BLOCKS or sum(shares) < 0.5 or max(shares) > 0.5:
        return None
    return sum(shares)


def evidence(update: Update) -> dict[str, float]:
    """The numbers behind a finding about a step, as far as they are finite."""
    found = {
        "lr": update.lr,
        "safe_lr": update.safe_lr,
        "predicted_loss_change": update.predicted_loss_change,
        "measured_loss_change": update.measured_loss_change,
        "function_change_relative": update.function_change_relative,
    }
    return {key: value for key, value in found.items() if value is not None and abs(value) < float("inf")}


def promise(update: Update) -> str:
    """Predicted and measured change in words."""
    return f"promises {update.predicted_loss_change:+.3g} and gives {update.measured_loss_change:+.3g}"
