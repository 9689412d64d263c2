"""T802: the loss does not fall."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from leadline.checks._check import Symptom, check
from leadline.checks._examples import constant, falling, noisy, scalar_history
from leadline.checks._history import START_STEPS, History
from leadline.checks._loop import is_comparable
from leadline.checks._statistics import MEDIAN_ERROR_RATIO, finite, medians, noise, relative_slope

# Heuristic: long enough that one percent of progress stands out from the noise of small batches.
WINDOW = 512
# Heuristic: quarters of the window; the median of the last is compared with that of the first.
PARTS = 4
# Calibrated by benchmarks/alarms.py: share of the loss; a larger fall over the window is progress.
MAX_RELATIVE_FALL = 0.01
# Heuristic: a fall of three standard errors is progress, however small.
MAX_FALL_SIGMAS = 3.0
# Calibrated by benchmarks/alarms.py: healthy runs lose more than a tenth of their loss in 512 steps.
MAX_STUCK_FALL = 0.1

STUCK_ACTION = "Check that targets match inputs, then try learning rates ten times smaller and larger."

assert START_STEPS <= WINDOW  # the start is no longer than the window it is compared with


@check(
    code="T802",
    name="plateau",
    since="0.1.0",
    needs=("loss",),
    sick=scalar_history(600, loss=noisy(constant(2.3), 0.05)),
    healthy=scalar_history(600, loss=noisy(falling(2.3, 0.5, 200), 0.05)),
    every=16,
    confirm=2,
    calm=256,
)
def plateau(history: History) -> Iterator[Symptom]:
    r"""The loss has stopped falling.

    ## What it measures
    The last `WINDOW` = 512 losses in `PARTS` = 4 parts: the median of the last part against that of the first. Fires
    if it fell by less than `MAX_RELATIVE_FALL` = 1 % and by less than `MAX_FALL_SIGMAS` = 3 standard errors of a
    difference of medians, $1.25\,\sigma\sqrt{2/n}$, with $n$ the steps of a part and $\sigma$ the noise between
    neighboring steps. It is a warning if the loss is still within `MAX_STUCK_FALL` = 10 % of what it was in the first
    32 steps: then hardly anything was learned. Otherwise it is a note: the network has learned, and does not learn
    more. A loss smaller than its own noise (of policy gradients, around zero) has no level to compare with, and is not
    judged.

    ## Why it hurts
    A loss that never left its start means that gradients do not reach the layers that must change, that the learning
    rate is far too small or too large, or that targets have nothing to do with inputs. Waiting does not help.

    ## When it is wrong
    Training that has converged is a plateau; that is why it is a note then. Losses that are not supposed to fall (a
    generator against its critic) say nothing. Some tasks stay on a plateau for long and leave it.

    ## References
    The vocabulary of loss-not-decreasing checks (SageMaker Debugger); standard error of a median: derived.
    """
    losses = history.scalars("loss", WINDOW)
    values = finite(losses.values)
    if len(values) < WINDOW:
        return
    parts = medians(values, PARTS)
    error = MEDIAN_ERROR_RATIO * noise(values) * (2 * PARTS / WINDOW) ** 0.5  # of a difference of medians
    fall = parts[0] - parts[-1]
    if fall > MAX_RELATIVE_FALL * abs(parts[0]) or fall > MAX_FALL_SIGMAS * error or _is_rising(parts, error):
        return
    if abs(parts[-1]) < noise(values):
        return
    begin = median(history.start("loss") or parts[:1])
    stuck = parts[-1] > begin - MAX_STUCK_FALL * abs(begin)
    progress = f": {_progress(parts[-1], begin)}" if stuck else f" (it began at {begin:.4g})"
    yield Symptom(
        severity="warning" if stuck and is_comparable(history) else "info",
        where="the loss",
        since=losses.steps[0],
        message=f"the loss has stayed at {parts[-1]:.4g} for {losses.steps[-1] - losses.steps[0]} steps{progress}",
        action=STUCK_ACTION if stuck else "Lower the learning rate, or stop if the run has converged.",
        trend=relative_slope(losses.steps, losses.values, parts[-1]),
        forecast="waiting alone seldom changes that" if stuck else "converged, or a smaller rate is due",
        evidence={"loss": parts[-1], "start": begin, "fell": fall, "standard_error": error},
    )


def _progress(now: float, begin: float) -> str:
    """How far the loss came, in words that are no stronger than the numbers."""
    share = (begin - now) / abs(begin) if begin else 0.0
    if abs(share) < MAX_RELATIVE_FALL:
        return f"it never left its first value, {begin:.4g}"
    if share < 0:
        return f"it is above its first value, {begin:.4g}"
    return f"it came no further than {100 * share:.0f} % below its first value, {begin:.4g}"


def _is_rising(parts: list[float], error: float) -> bool:
    """Whether the loss rises, which is left to T803."""
    return parts[-1] - min(parts[:-1]) > max(MAX_RELATIVE_FALL * abs(parts[0]), MAX_FALL_SIGMAS * error)
