"""T802: the loss does not fall."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from leadline.checks._check import Symptom, check
from leadline.checks._history import START, History
from leadline.checks._run_examples import constant, course, falling, noisy
from leadline.checks._statistics import finite, medians, noise, relative_slope

WINDOW = 512  # ours: long enough that one per cent of progress shows above the noise of small batches
PARTS = 4
LEAST = 0.01  # of the loss over the window; calibrated by benchmarks/alarms.py
SIGMAS = 3.0  # ours: a fall of three standard errors is progress, however small
STUCK = (
    0.1  # calibrated by benchmarks/alarms.py: healthy runs lose more than a tenth of their loss in 512 steps
)


@check(
    code="T802",
    name="plateau",
    since="0.1",
    needs=("loss",),
    sick=course(600, loss=noisy(constant(2.3), 0.05)),
    healthy=course(600, loss=noisy(falling(2.3, 0.5, 200), 0.05)),
    every=16,
    confirm=2,
    calm=256,
)
def plateau(history: History) -> Iterator[Symptom]:
    r"""The loss has stopped falling.

    ## What it measures
    The last `WINDOW` = 512 losses in `PARTS` = 4 parts: the median of the last part against that of the first. Fires
    if it fell by less than `LEAST` = 1 % and by less than `SIGMAS` = 3 standard errors of a difference of medians,
    $1.25\,\sigma\sqrt{2/n}$, with $n$ the steps of a part and $\sigma$ the noise between neighbouring steps. A
    warning if the loss is still within `STUCK` = 10 % of what it was in the first 32 steps: then hardly anything was
    learnt. A note otherwise: it has learnt, and does not learn more. A loss smaller than its own noise (of policy
    gradients, around zero) has no level of which to take shares, and is not judged.

    ## Why it hurts
    A loss that never left its start means that gradients do not reach the layers that must change, that the rate is
    far too small or too large, or that targets have nothing to do with inputs; waiting does not help.

    ## When it is wrong
    Training that has converged is a plateau: hence a note. Losses that are not supposed to fall (a generator against
    its critic) say nothing. Some tasks sit on a plateau for long and leave it.

    ## References
    The vocabulary of loss-not-decreasing checks (SageMaker Debugger); standard error of a median: derived.
    """
    found = history.scalars("loss", WINDOW)
    values = finite(found.values)
    if len(values) < WINDOW:
        return
    parts = medians(values, PARTS)
    error = (
        1.2533 * noise(values) * (2 * PARTS / WINDOW) ** 0.5
    )  # of a difference of medians; sqrt(pi/2) (derived)
    fell = parts[0] - parts[-1]
    if fell > LEAST * abs(parts[0]) or fell > SIGMAS * error or _is_rising(parts, error):
        return
    if abs(parts[-1]) < noise(values):  # around zero, as of policy gradients: a share of that says nothing
        return
    begin = median(history.start("loss") or parts[:1])
    stuck = parts[-1] > begin - STUCK * abs(begin)
    yield Symptom(
        severity="warning" if stuck else "info",
        where="the loss",
        since=found.steps[0],
        message=f"the loss has stood at {parts[-1]:.4g} for {found.steps[-1] - found.steps[0]} steps"
        + (f": {_from_start(parts[-1], begin)}" if stuck else f" (it began at {begin:.4g})"),
        trend=relative_slope(found.steps, found.values, parts[-1]),
        forecast="waiting alone seldom changes that" if stuck else "converged, or a smaller rate is due",
        evidence={"loss": parts[-1], "start": begin, "fell": fell, "standard_error": error},
    )


def _from_start(now: float, begin: float) -> str:
    """How far it came, in words that are no stronger than the numbers."""
    share = (begin - now) / abs(begin) if begin else 0.0
    if abs(share) < LEAST:
        return f"it never left its first value, {begin:.4g}"
    if share < 0:
        return f"it is above its first value, {begin:.4g}"
    return f"it came no further than {share:.0%} below its first value, {begin:.4g}"


def _is_rising(parts: list[float], error: float) -> bool:
    """A loss that rises is T803."""
    return parts[-1] - min(parts[:-1]) > max(LEAST * abs(parts[0]), SIGMAS * error)


assert START <= WINDOW  # the start is no longer than the window it is compared with
