"""When a step is too long: the user's rate against the rate at which a step is still what its gradient promises."""

from __future__ import annotations

from leadline.records import Profile, Severity, Update
from leadline.rules.families import Family, family_of

# Rates over the safe rate, calibrated by benchmarks/update_limits.py:
BEYOND: dict[Family, float] = {"sgd": 10.0, "adam": 64.0}  # farther, at most one network in twenty learned
FAILS: dict[Family, float] = {"sgd": 4.0, "adam": 16.0}  # about half of all its networks fail there
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
