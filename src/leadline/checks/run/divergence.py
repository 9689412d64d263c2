"""T803: the loss rises and keeps rising."""

from __future__ import annotations

import math
from collections.abc import Iterator
from statistics import median

from leadline.checks._check import Symptom, check
from leadline.checks._examples import falling, noisy, scalar_history
from leadline.checks._history import MAX_STEPS, History
from leadline.checks._loop import incomparable_clause, is_comparable
from leadline.checks._statistics import MEDIAN_ERROR_RATIO, medians, noise, relative_slope
from leadline.records import Severity

# Heuristic: three parts of 32 steps, whose medians stand out from the noise of single batches.
WINDOW = 96
# Heuristic: two parts in a row must be above the best; a single high part is a spike.
PARTS = 3
# Calibrated by benchmarks/alarms.py: share of the loss; healthy runs stay below.
MIN_RELATIVE_RISE = 0.25
# Calibrated by benchmarks/alarms.py: standard errors of a median.
MIN_RISE_SIGMAS = 6.0
# Derived: three standard errors of a difference of two medians; after a larger fall the loss is recovering.
MAX_FALL_SIGMAS = 3 * math.sqrt(2)
# Heuristic: steps ahead for which a forecast is given; as many as the history holds.
MAX_FORECAST_STEPS = MAX_STEPS


@check(
    code="T803",
    name="divergence",
    since="0.1.0",
    needs=("loss",),
    sick=scalar_history(
        400, loss=lambda step: noisy(falling(2.3, 0.5, 60), 0.1)(step) * math.exp(max(0, step - 300) / 40)
    ),
    healthy=scalar_history(400, loss=noisy(falling(2.3, 0.5, 60), 0.3)),
    explains=("T801", "T802"),
    every=16,
    confirm=2,
    calm=128,
)
def divergence(history: History) -> Iterator[Symptom]:
    r"""The loss rises for many steps and does not come back.

    ## What it measures
    Medians of the last `PARTS` = 3 parts of 32 steps, $m_1, m_2, m_3$, against the best of all earlier parts of the
    history, $b$. Fires if $m_3$ exceeds $b$ by `MIN_RELATIVE_RISE` = 25 % and by `MIN_RISE_SIGMAS` = 6 standard errors
    of a median, and either rises ($m_3 > m_2 > b$) or stays high ($m_2$ was as high, and $m_3$ is lower by no more
    than chance). An error once the loss is above its start.

    ## Why it hurts
    Past the stability limit each step makes the next one worse. A run that diverges does not return by itself to
    where it was: go back to a checkpoint from before `since` with a smaller learning rate, or with the cause of the
    first spike removed.

    ## When it is wrong
    A loss whose meaning changes (a curriculum, a penalty that grows, harder negatives) rises without harm. It is a note
    where the loop shows that losses cannot be compared: another optimizer trains against this one, or a network that
    learns makes the targets or the data of each step.

    ## References
    Cohen et al., "Gradient descent on neural networks typically occurs at the edge of stability", 2021 (where steps
    begin to diverge). Thresholds calibrated, see the docs on alarms.
    """
    losses = history.scalars("loss").values
    if len(losses) < 2 * WINDOW or not all(map(math.isfinite, losses[-WINDOW:])):
        return
    earlier = [loss for loss in losses[:-WINDOW] if math.isfinite(loss)]
    size = WINDOW // PARTS
    if len(earlier) < size:
        return
    best = min(medians(earlier, len(earlier) // size))
    _, second, third = medians(losses[-WINDOW:], PARTS)
    error = MEDIAN_ERROR_RATIO * noise(losses[-WINDOW:]) / size**0.5
    high = best + max(MIN_RELATIVE_RISE * abs(best), MIN_RISE_SIGMAS * error)
    rises = second > best and third > second
    stays = second > high and third > second - MAX_FALL_SIGMAS * error
    if third > high and (rises or stays):
        yield _symptom(history, best, third, error)


def _symptom(history: History, best: float, now: float, error: float) -> Symptom:
    losses = history.scalars("loss")
    start = median(history.start("loss") or [best])
    trend = relative_slope(losses.steps[-WINDOW:], losses.values[-WINDOW:], now)
    doubles = trend * MAX_FORECAST_STEPS > math.log(2)
    since = _last_best_step(losses.steps, losses.values, best)
    severity: Severity = "error" if now > start else "warning"
    return Symptom(
        severity=severity if is_comparable(history) else "info",
        where="the loss",
        since=since,
        message=f"the loss has risen from {best:.4g} to {now:.4g}"
        + (", above its start" if now > start else "")
        + incomparable_clause(history),
        action=f"Go back to a checkpoint from before step {since} and continue with a smaller learning rate.",
        trend=trend,
        forecast=f"doubles in about {math.log(2) / trend:.0f} steps" if doubles else "",
        evidence={
            "loss": now,
            "best": best,
            "start": start,
            "sigmas": (now - best) / error if error else 0.0,
        },
    )


def _last_best_step(steps: list[int], values: list[float], best: float) -> int:
    """The last step at which the loss was at its best level."""
    below = [step for step, value in zip(steps, values, strict=True) if value <= best]
    return below[-1] if below else steps[0]
