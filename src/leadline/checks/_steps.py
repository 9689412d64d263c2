"""What checks ask about the first steps of the user's optimizer: how far they go, and how far would be safe."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median

from leadline.ops.optimizers import Family, decay_share, family_of, momentum_gain
from leadline.records import ParamGroup, Profile, ScaledTensor, Severity, Update

HALF_PRECISION = ("float16", "bfloat16")

# Calibrated by benchmarks/verdicts: share of the loss. Of the networks that failed, only exploding ones lost more in
# their first step.
MIN_LOSS_DROP = 0.06

# Calibrated by benchmarks/update_limits.py: learning rate over the safe rate. Beyond it, at most one network in twenty
# learned.
MAX_RATE_RATIO: dict[Family, float] = {"sgd": 10.0, "adam": 64.0}

# Calibrated by benchmarks/update_limits.py: multiple of MAX_RATE_RATIO beyond which one run in sixty learned.
HOPELESS_MULTIPLE = 4.0

# Heuristic: learning rates in use are larger; a smaller one is the reason why a step is small.
MIN_USUAL_RATE = 1e-6

# Heuristic: a sum over fewer blocks says nothing about depth.
MIN_SPREAD_BLOCKS = 8

# Derived: with more than half of the step, one block outweighs all the others together.
MAX_SHARE_OF_ONE_BLOCK = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSize:
    r"""How far an optimizer step moves the weights, and by how much it should lower the loss.

    The first step of a fresh optimizer that sums gradients in a momentum $\mu$ (SGD) is its smallest: once momentum has
    built up, steps along a steady gradient are $1/(1-\mu)$ times as long. `relative` and `predicted_decrease` describe
    these later steps.
    """

    family: Family
    optimizer: str
    lr: float
    relative: float
    """Median of update norm over weight norm. Only weight layers with a gradient count: others may start at zero."""
    predicted_decrease: float
    """The decrease of the loss if the loss were linear, over the loss."""
    measured: float
    """The share of the loss that the first step removed; negative if it raised the loss."""

    @property
    def lowers_loss(self) -> bool:
        """The measured step lowers the loss by a good part, however long it is."""
        return self.measured > MIN_LOSS_DROP


def step_size_of(profile: Profile) -> StepSize | None:
    """The size of the measured step; None without one, for an unknown optimizer, or if the loss is not positive."""
    update, family = profile.update, optimizer_family(profile)
    if update is None or family is None or not update.loss > 0:
        return None
    names = {weight.name for weight in profile.facts.weights} if profile.facts else set()
    moved = [step for step in update.parameters if step.name in names and step.grad_norm > 0]
    ratios = [ratio for step in moved if (ratio := step.update_ratio)]
    gain = _largest_momentum_gain(profile) if update.steps == 0 else 1.0
    size = StepSize(
        family=family,
        optimizer=update.optimizer,
        lr=update.lr or 0.0,
        relative=median(ratios) * gain if ratios else math.nan,
        predicted_decrease=-update.predicted_loss_change / update.loss * gain,
        measured=-update.measured_loss_change / update.loss,
    )
    return size if math.isfinite(size.relative) and math.isfinite(size.predicted_decrease) else None


def optimizer_family(profile: Profile) -> Family | None:
    """Whether steps are linear in the gradient ("sgd") or independent of its scale ("adam"); None if unknown."""
    return None if profile.optimizer is None else family_of(profile.optimizer.name)


def is_warming_up(profile: Profile) -> bool:
    """Whether a scheduler of torch has set learning rates below those that it starts from."""
    groups = profile.optimizer.groups if profile.optimizer else ()
    return any((group.options.get("initial_lr") or 0.0) > (group.lr or 0.0) for group in groups)


def decay_per_step(profile: Profile) -> float:
    """The largest share of a weight that weight decay alone removes in one step; 0 without an optimizer."""
    optimizer = profile.optimizer
    if optimizer is None:
        return 0.0
    return max((decay_share(optimizer, group) for group in optimizer.groups), default=0.0)


def decayed_tensors(profile: Profile) -> Iterator[tuple[ParamGroup, ScaledTensor]]:
    """Every tensor under weight decay, with its parameter group."""
    if profile.optimizer is None or profile.symmetry is None:
        return
    tensors = {each.name: each for each in profile.symmetry.tensors}
    for group in profile.optimizer.groups:
        if group.weight_decay > 0:
            yield from ((group, tensors[name]) for name in group.parameters if name in tensors)


def rate_over_safe_rate(update: Update | None) -> float | None:
    """The largest learning rate over the safe one; None if either is unknown."""
    if update is None or not update.lr or not update.safe_lr:
        return None
    return update.lr / update.safe_lr


def long_step_severity(update: Update | None) -> Severity | None:
    """How serious it is that the step goes far beyond the safe rate; None if it does not.

    The limit depends on the family of the optimizer; an unknown optimizer gets the limit of Adam, which is higher. A
    step that lowers the loss is not too long, however much more its gradient predicted.
    """
    ratio = rate_over_safe_rate(update)
    if update is None or ratio is None:
        return None
    limit = MAX_RATE_RATIO[family_of(update.optimizer) or "adam"]
    lowers_loss = update.measured_loss_change < -update.loss_resolution
    if ratio <= limit or lowers_loss:
        return None
    return "error" if ratio > HOPELESS_MULTIPLE * limit else "warning"


def share_of_repeated_blocks(profile: Profile) -> float | None:
    """The share of the step that many repeated blocks make together; None if one has most of it, or blocks are few.

    Where there is such a share, the step of each block alone would be fine: only their number makes the sum too long.
    """
    if profile.update is None:
        return None
    shares = [block.share for block in profile.update.blocks if block.repeated and block.share is not None]
    if len(shares) < MIN_SPREAD_BLOCKS or max(shares) > MAX_SHARE_OF_ONE_BLOCK:
        return None
    total = sum(shares)
    return total if total >= MAX_SHARE_OF_ONE_BLOCK else None


def lower_rate_action(update: Update, max_rate: float = math.inf, *, otherwise: str = "") -> str:
    """One sentence that says to lower the learning rate to `max_rate`, or to the safe rate if that is lower.

    `otherwise` is another way out, to be read after "or".
    """
    rate = min(max_rate, update.safe_lr or math.inf)
    if not math.isfinite(rate):
        return "Lower the learning rate, or warm it up with `leadline.nn.schedule`."
    if rate < MIN_USUAL_RATE:
        return (
            f"Fix what makes the gradient so large, which other findings name, because a learning rate of {rate:.2g} "
            "is too small to learn."
        )
    last = f"warm it up from there with `leadline.nn.schedule`{f', or {otherwise}' if otherwise else ''}"
    return f"Lower the learning rate from {update.lr or 0.0:.2g} to {rate:.2g}, {'' if otherwise else 'or '}{last}."


def new_loss(update: Update) -> str:
    """What one step does to the loss, in words: "changes the loss by +0.8" or "makes the loss NaN"."""
    change = update.measured_loss_change
    return f"changes the loss by {change:+.3g}" if math.isfinite(change) else "makes the loss NaN or infinite"


def step_evidence(update: Update) -> dict[str, float]:
    """The evidence of a finding about a step, without those that are unknown or infinite."""
    numbers = {
        "lr": update.lr,
        "safe_lr": update.safe_lr,
        "predicted_loss_change": update.predicted_loss_change,
        "measured_loss_change": update.measured_loss_change,
        "function_change_relative": update.function_change_relative,
    }
    return {key: value for key, value in numbers.items() if value is not None and abs(value) < math.inf}


def _largest_momentum_gain(profile: Profile) -> float:
    optimizer = profile.optimizer
    if optimizer is None:
        return 1.0
    return max((momentum_gain(optimizer, group) for group in optimizer.groups), default=1.0)
