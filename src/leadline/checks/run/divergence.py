"""T803: the loss rises and goes on rising."""

from __future__ import annotations

import math
from collections.abc import Iterator
from statistics import median

from leadline.checks._check import Symptom, check
from leadline.checks._history import History
from leadline.checks._run_examples import course, falling, noisy
from leadline.checks._statistics import medians, noise, relative_slope

WINDOW = 96
FORESEEN = 1024  # ours: steps ahead of which something is said; as many as are remembered
PARTS = 3  # the best before, and two parts that are both above it: one bad stretch is a spike
RISE = 0.25  # of the loss; calibrated by benchmarks/alarms.py: healthy runs stay below
SIGMAS = 6.0  # standard errors of a median; calibrated by the same script
# standard errors of a median; derived: three of a difference, below which it is on its way back
BACK = 3 * math.sqrt(2)


@check(
    code="T803",
    name="divergence",
    since="0.1",
    needs=("loss",),
    sick=course(
        400, loss=lambda step: noisy(falling(2.3, 0.5, 60), 0.1)(step) * math.exp(max(0, step - 300) / 40)
    ),
    healthy=course(400, loss=noisy(falling(2.3, 0.5, 60), 0.3)),
    explains=("T801", "T802"),
    every=16,
    confirm=2,
    calm=128,
)
def divergence(history: History) -> Iterator[Symptom]:
    r"""The loss rises for many steps and does not come back.

    ## What it measures
    Medians of the last `PARTS` = 3 stretches of 32 steps, $m_1, m_2, m_3$, against the best of all earlier stretches
    in the history, $b$. Fires if $m_3$ exceeds $b$ by `RISE` = 25 % and by `SIGMAS` = 6 standard errors of a median,
    and either rises ($m_3 > m_2 > b$) or stays there ($m_2$ was as high, and $m_3$ is lower by no more than chance). An
    error once the loss is above its start.

    ## Why it hurts
    Past the stability limit each step makes the next one worse. A run that diverges does not return by itself to
    where it was: go back to a checkpoint from before `since` with a smaller rate, or with the cause of the first
    spike removed.

    ## When it is wrong
    A loss whose meaning changes (a curriculum, a penalty that grows, harder negatives) rises without harm.

    ## References
    Cohen et al., "Gradient descent on neural networks typically occurs at the edge of stability", 2021 (where steps
    begin to diverge). Thresholds calibrated, see the docs on alarms.
    """
    found = history.scalars("loss")
    values = found.values
    if len(values) < 2 * WINDOW or not all(map(math.isfinite, values[-WINDOW:])):
        return
    earlier = [each for each in values[:-WINDOW] if math.isfinite(each)]
    size = WINDOW // PARTS
    if len(earlier) < size:
        return
    best = min(medians(earlier, len(earlier) // size))
    _, second, third = medians(values[-WINDOW:], PARTS)
    error = 1.2533 * noise(values[-WINDOW:]) / size**0.5  # of a median (derived)
    high = best + max(RISE * abs(best), SIGMAS * error)
    rises = second > best and third > second
    stays = second > high and third > second - BACK * error
    if third > high and (rises or stays):
        yield _symptom(history, best, third, error)


def _symptom(history: History, best: float, now: float, error: float) -> Symptom:
    found = history.scalars("loss")
    start = median(history.start("loss") or [best])
    trend = relative_slope(found.steps[-WINDOW:], found.values[-WINDOW:], now)
    doubling = f"doubles in about {math.log(2) / trend:.0f} steps" if trend * FORESEEN > math.log(2) else ""
    return Symptom(
        severity="error" if now > start else "warning",
        where="the loss",
        since=_turned(found.steps, found.values, best),
        message=f"the loss has risen from {best:.4g} to {now:.4g}"
        + (", above its start" if now > start else ""),
        trend=trend,
        forecast=doubling,
        evidence={
            "loss": now,
            "best": best,
            "start": start,
            "sigmas": (now - best) / error if error else 0.0,
        },
    )


def _turned(steps: list[int], values: list[float], best: float) -> int:
    """The last step at which the loss was at its best level."""
    below = [step for step, value in zip(steps, values, strict=True) if value <= best]
    return below[-1] if below else steps[0]
