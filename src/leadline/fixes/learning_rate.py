"""learning-rate: the rate at which a step does what its gradient promises."""

from __future__ import annotations

import math
from collections.abc import Iterator

from leadline.checks._steps import step_size_of
from leadline.fixes._engine.fix import Patient, Plan, fix
from leadline.records import Edit

MOVE = 0.03  # of a weight's size a step: the median of 168 networks that learned (benchmarks/verdicts, calibration)
PROMISE = {"adam": 0.5, "sgd": 0.2}  # of the loss a step: upper quartile and median of the same networks
SAFE = 1.0  # of Update.safe_lr: nine in ten of the same networks that learned had at most four times this
NEAR = 2.0  # a rate within this factor of the wanted one is left alone (ours)
ASIDE = 3.0  # factor between one try and the next (ours)


@fix(
    name="learning-rate",
    answers=("U50", "U52", "B202", "B205", "I308", "R402", "N70", "F106", "F108"),
    reach="recipe",
    since="0.2",
)
def learning_rate(patient: Patient) -> Iterator[Plan]:
    r"""Changes the learning rate to what one measured step says this model bears.

    ## What it does
    Multiplies the rate of every parameter group by one factor, so that rates stay in proportion and schedulers go on
    from there. The wanted rate is the smallest of three: that at which a step moves the typical matrix by 3 % of its
    size; that at which it promises a fifth of the loss (SGD) or a half (Adam); and `Update.safe_lr`, the largest rate
    at which the measured step still is what the gradient promises. Where that rate is far from the current one, rates
    three and nine times nearer to it and one three times farther are proposed too.

    ## Why it works
    Too large a step leaves the region in which the gradient means anything, and overwrites the weights; too small a one
    needs thousands of repetitions. Both are read off one step that is made, measured and undone.

    ## What it costs
    Nothing, if the rate was wrong. A smaller rate than needed costs steps.

    ## When it does not help
    If gradients explode or vanish for another reason, the rate that is bearable at the first step makes no progress:
    then initialisation, residual scale or norms are to be repaired first.

    ## References
    The measured step: `leadline.update`. Thresholds: `benchmarks/verdicts`, calibration half.
    """
    wanted, now = wanted_rate(patient), patient.profile.update
    if wanted is None or now is None or not now.lr:
        return
    factor = wanted / now.lr
    if 1 / NEAR < factor < NEAR:
        return
    nearer = 1 / ASIDE if factor > 1 else ASIDE
    choices = ((factor, 0.9), (factor * nearer, 0.7), (factor * nearer**2, 0.5), (factor / nearer, 0.4))
    for each, promise in choices:
        if float(f"{each:.2g}") != 1.0:  # that would be the rate it has
            yield _plan(now.lr, each, promise)


def wanted_rate(patient: Patient) -> float | None:
    """The rate that one measured step recommends; None where no step was measured, or it went nowhere."""
    update, pace = patient.profile.update, step_size_of(patient.profile)
    if update is None or pace is None or not pace.lr:
        return None
    limits = [pace.lr * MOVE / pace.relative if pace.relative > 0 else math.inf]
    if pace.promised > 0:
        limits.append(pace.lr * PROMISE[pace.family] / pace.promised)
    if update.safe_lr and not update.safe_lr_is_bound:
        limits.append(SAFE * update.safe_lr)
    found = min(limits)
    return found if 0 < found < math.inf else None


def _plan(rate: float, factor: float, promise: float) -> Plan:
    factor = float(f"{factor:.2g}")
    return Plan(
        title=f"learning rate {rate:.3g} times {factor:.2g} = {rate * factor:.2g}",
        edits=(Edit(action="rate", options={"factor": factor}),),
        promise=promise,
    )
