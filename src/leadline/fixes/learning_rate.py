"""The fix learning-rate: the rate at which a step does what its gradient predicts."""

from __future__ import annotations

import math
from collections.abc import Iterator

from leadline.checks._steps import step_size_of
from leadline.fixes._engine.fix import FixContext, Plan, fix
from leadline.fixes._engine.lookup import RATE_RATIO, family, learned_rates
from leadline.records import Edit

# Calibrated by benchmarks/verdicts: relative change of a weight per step, the median of 168 networks that learned.
RELATIVE_STEP = 0.03

# Calibrated by benchmarks/verdicts: predicted decrease per step as a share of the loss, for the same networks; the
# upper quartile with Adam, the median with SGD.
PREDICTED_LOSS_SHARE = {"adam": 0.5, "sgd": 0.2}

# Calibrated by benchmarks/verdicts: multiple of `Update.safe_lr`; nine in ten of the same networks had at most 4.
MAX_SAFE_RATE_MULTIPLE = 1.0

# Heuristic: a rate within this factor of the target is as good as the measurement can tell.
MIN_RATE_CHANGE = 2.0


@fix(
    name="learning-rate",
    answers=("U50", "U52", "U530", "B202", "B205", "I308", "R402", "N70", "F106", "F108"),
    reach="recipe",
    since="0.1.0",
)
def learning_rate(context: FixContext) -> Iterator[Plan]:
    r"""Changes the learning rate to the one that a measured step recommends for this model.

    ## What it does
    Multiplies the rate of every parameter group by one factor, so that rates stay in proportion and schedulers continue
    from there. The target is the smallest of three rates: the one at which a step moves the typical matrix by 3 % of
    its size; the one at which its predicted decrease is a fifth of the loss (SGD) or a half (Adam); and
    `Update.safe_lr`, the largest rate at which the measured step still agrees with the gradient. Where the target is
    far from the current rate, the fix also proposes rates three and nine times nearer to the current one, and one three
    times beyond the target. For Adam and its relatives it also proposes the rate at which the check `behind-reference`
    (U530) saw the network learn.

    ## Why it works
    Too large a step leaves the region in which the gradient means anything, and overwrites the weights. Too small a
    step needs thousands of repetitions. Both show in one step that is made, measured and undone.

    ## What it costs
    Nothing, if the rate was wrong. A rate that is smaller than needed costs steps.

    ## When it does not help
    If gradients explode or vanish for another reason, the rate that is safe at the first step makes no progress. Then
    repair initialization, residual scale or norms first.

    ## References
    The measured step: `leadline.update`. Thresholds: `benchmarks/verdicts`, calibration half.
    """
    target, update = target_rate(context), context.profile.update
    if update is None or not update.lr:
        return
    for learned in learned_rates(context) if family(context) == "adam" else ():
        if not 1 / MIN_RATE_CHANGE < learned / update.lr < MIN_RATE_CHANGE:
            yield _plan(update.lr, learned / update.lr, 0.85)
    if target is None:
        return
    factor = target / update.lr
    if 1 / MIN_RATE_CHANGE < factor < MIN_RATE_CHANGE:
        return
    nearer = 1 / RATE_RATIO if factor > 1 else RATE_RATIO
    choices = ((factor, 0.9), (factor * nearer, 0.7), (factor * nearer**2, 0.5), (factor / nearer, 0.4))
    for each, promise in choices:
        if float(f"{each:.2g}") != 1.0:  # a factor of 1 would be the current rate
            yield _plan(update.lr, each, promise)


def target_rate(context: FixContext) -> float | None:
    """The rate that one measured step recommends; None if no step was measured or it did not move anything."""
    update, step = context.profile.update, step_size_of(context.profile)
    if update is None or step is None or not step.lr:
        return None
    limits = [step.lr * RELATIVE_STEP / step.relative if step.relative > 0 else math.inf]
    if step.predicted_decrease > 0:
        limits.append(step.lr * PREDICTED_LOSS_SHARE[step.family] / step.predicted_decrease)
    if update.safe_lr and not update.safe_lr_is_bound:
        limits.append(MAX_SAFE_RATE_MULTIPLE * update.safe_lr)
    rate = min(limits)
    return rate if 0 < rate < math.inf else None


def _plan(rate: float, factor: float, promise: float) -> Plan:
    factor = float(f"{factor:.2g}")
    return Plan(
        title=f"learning rate {rate:.3g} times {factor:.2g} = {rate * factor:.2g}",
        edits=(Edit(action="rate", options={"factor": factor}),),
        promise=promise,
    )
