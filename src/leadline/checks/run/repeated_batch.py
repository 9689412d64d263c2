"""T810: training sees the same batch again and again."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise
from statistics import median

from leadline.checks._check import Symptom, check
from leadline.checks._history import History, Window
from leadline.checks._run_examples import constant, course, falling, noisy
from leadline.checks._statistics import relative_slope

EXACT = 8  # ours: batches that differ do not give the same loss and gradient to the last bit eight times
WINDOW = 64
ROUGHNESS = (
    0.2  # calibrated by benchmarks/alarms.py; derived: independent noise has 1.7, a smooth curve near 0
)
LEAST = 1e-5  # of the loss; derived: changes of a hundred float32 roundings, below which the curve is rounding noise


@check(
    code="T810",
    name="repeated-batch",
    since="0.1",
    needs=("loss",),
    sick=course(100, loss=constant(2.301), grad_norm=constant(0.5)),
    healthy=course(100, loss=noisy(falling(2.3, 0.5, 100), 0.02), grad_norm=noisy(constant(0.5), 0.1)),
    explains=("T802",),
    every=8,
    confirm=2,
    calm=128,
)
def repeated_batch(history: History) -> Iterator[Symptom]:
    r"""The data do not change: the same batch comes at every step.

    ## What it measures
    Two signs. Loss and gradient norm are equal to the last bit in the last `EXACT` = 8 steps: the same batch, and
    nothing moves (a warning). Or the loss of the last `WINDOW` = 64 steps is a smooth curve: the median of its second
    differences is below `ROUGHNESS` = 0.2 of that of its first ones, where batches that differ give about 1.7 (a
    note).

    ## Why it hurts
    A loader that yields one batch for ever makes the best of training curves: the loss falls smoothly to zero, and
    the network has learnt those samples by heart.

    ## When it is wrong
    Training on the whole data set at every step, or fitting one batch as a test, is smooth on purpose: hence a note.
    Dropout and other noise of the network itself hide a repeated batch from the second sign.

    ## References
    Derived: for independent noise, second differences have variance $6\sigma^2$ and first ones $2\sigma^2$.
    """
    found = history.scalars("loss", WINDOW)
    if _is_frozen(found) and _is_frozen(history.scalars("grad_norm", EXACT)):
        yield _frozen(history, found)
        return
    rough = _roughness(found)
    if rough is None or rough >= ROUGHNESS:
        return
    yield Symptom(
        severity="info",
        where="the data",
        since=found.steps[0],
        message=f"the loss of the last {WINDOW} steps is a smooth curve, as if every step had the same batch",
        trend=relative_slope(found.steps, found.values, median(found.values)),
        forecast="the network learns these samples by heart",
        evidence={"roughness": rough, "loss": found.values[-1]},
    )


def _frozen(history: History, found: Window) -> Symptom:
    equal = next((i for i, each in enumerate(found.values[::-1]) if each != found.values[-1]), len(found))
    moved = history.latest("update_norm")
    return Symptom(
        severity="warning",
        where="the data",
        since=found.steps[-equal],
        message=f"loss and gradient are the same to the last bit in the last {equal} steps: the same batch, and "
        + ("weights that do not move" if not moved else "steps that change nothing"),
        trend=0.0,
        forecast="nothing will change by waiting",
        evidence={"equal_steps": float(equal), "loss": found.values[-1]},
    )


def _is_frozen(found: Window) -> bool:
    last = found.values[-EXACT:]
    return len(last) == EXACT and math.isfinite(last[0]) and len(set(last)) == 1


def _roughness(found: Window) -> float | None:
    """Median second over median first difference; None if too short, not finite, or flat to rounding."""
    values = found.values
    if len(values) < WINDOW or not all(map(math.isfinite, values)):
        return None
    first = [b - a for a, b in pairwise(values)]
    second = [b - a for a, b in pairwise(first)]
    size = median(map(abs, first))
    return median(map(abs, second)) / size if size > LEAST * abs(median(values)) else None
