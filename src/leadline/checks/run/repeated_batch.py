"""T810: training sees the same batch again and again."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise
from statistics import median

from leadline.checks._check import Symptom, check
from leadline.checks._examples import constant, falling, noisy, scalar_history
from leadline.checks._history import History, Window
from leadline.checks._loop import since, value
from leadline.checks._statistics import relative_slope

# Heuristic: different batches do not give the same loss and gradient to the last bit eight times in a row.
EQUAL_STEPS = 8
# Heuristic: enough differences for a stable median, few enough that one trend holds over them.
WINDOW = 64
# Calibrated by benchmarks/alarms.py. Derived: independent noise has 1.7, a smooth curve is near 0.
MAX_ROUGHNESS = 0.2
# Heuristic: steps in a row with the same inputs, while the loader is started again and again.
MIN_SAME_STEPS = 8
# Heuristic: the same without a loader; several epochs over one rollout have fewer.
MIN_SAME_STEPS_BY_CHOICE = 64
# Derived: a hundred float32 roundings, as a share of the loss; smaller changes are rounding noise.
MIN_RELATIVE_CHANGE = 1e-5

LOADER_ACTION = "Check that each step reads a new batch: use `for batch in loader`, not `next(iter(loader))`."


@check(
    code="T810",
    name="repeated-batch",
    since="0.1.0",
    needs=("loss", "same_batch"),
    sick=scalar_history(100, loss=constant(2.301), grad_norm=constant(0.5)),
    healthy=scalar_history(
        100, loss=noisy(falling(2.3, 0.5, 100), 0.02), grad_norm=noisy(constant(0.5), 0.1)
    ),
    explains=("T802",),
    every=8,
    confirm=2,
    calm=128,
)
def repeated_batch(history: History) -> Iterator[Symptom]:
    r"""The data do not change: every step gets the same batch.

    ## What it measures
    Steps in a row whose inputs are equal, known by some of their elements. A warning at `MIN_SAME_STEPS` = 8 if a
    DataLoader of several batches was started again in most of these steps, which is what `next(iter(loader))` in the
    loop does; else a note at `MIN_SAME_STEPS_BY_CHOICE` = 64.

    Where inputs were not recorded (a log of losses, batches on another device) there are two other signs. First, loss
    and gradient norm are equal to the last bit in the last `EQUAL_STEPS` = 8 steps: the batch is the same and nothing
    moves (a warning). Second, the loss of the last `WINDOW` = 64 steps is a smooth curve: the median of its second
    differences is below `MAX_ROUGHNESS` = 0.2 of that of its first ones, where batches that differ give about 1.7 (a
    note).

    ## Why it hurts
    A loader that yields one batch forever makes the best-looking training curve: the loss falls smoothly to zero, and
    the network has memorized those samples.

    ## When it is wrong
    Training on the whole data set at every step, or fitting one batch as a test, is done on purpose; that is why it is
    a note. Dropout and other noise of the network itself hide a repeated batch from a loss curve.

    ## References
    Derived: for independent noise, second differences have variance $6\sigma^2$ and first ones $2\sigma^2$.
    """
    if history.has("same_batch"):
        yield from _same_inputs(history)
        return
    losses = history.scalars("loss", WINDOW)
    if _is_frozen(losses) and _is_frozen(history.scalars("grad_norm", EQUAL_STEPS)):
        yield _frozen_symptom(history, losses)
        return
    roughness = _roughness(losses)
    if roughness is None or roughness >= MAX_ROUGHNESS:
        return
    yield Symptom(
        severity="info",
        where="the data",
        since=losses.steps[0],
        message=f"the loss of the last {WINDOW} steps is a smooth curve, as if every step had the same batch",
        action=LOADER_ACTION,
        trend=relative_slope(losses.steps, losses.values, median(losses.values)),
        forecast="the network memorizes these samples",
        evidence={"roughness": roughness, "loss": losses.values[-1]},
    )


def _same_inputs(history: History) -> Iterator[Symptom]:
    steps, restarts = value(history, "same_batch"), value(history, "loader_restarts")
    is_restarted = value(history, "epoch_batches") > 1 and restarts >= MIN_SAME_STEPS
    if steps < (MIN_SAME_STEPS if is_restarted else MIN_SAME_STEPS_BY_CHOICE):
        return
    yield Symptom(
        severity="warning" if is_restarted else "info",
        where="the data",
        since=since(history, "same_batch"),
        message=f"the last {steps:.0f} steps or more had the same inputs"
        + (", and each of them started the data loader again" if is_restarted else ""),
        action=LOADER_ACTION,
        forecast="the network memorizes these samples",
        evidence={"steps": steps, "restarts": restarts},
    )


def _frozen_symptom(history: History, losses: Window) -> Symptom:
    last = losses.values[-1]
    equal = next((count for count, loss in enumerate(losses.values[::-1]) if loss != last), len(losses))
    moves = bool(history.latest("update_norm"))
    return Symptom(
        severity="warning",
        where="the data",
        since=losses.steps[-equal],
        message=f"loss and gradient are equal to the last bit in the last {equal} steps: the batch is the same, and "
        + ("updates do not change the loss" if moves else "weights do not move"),
        action=LOADER_ACTION,
        trend=0.0,
        forecast="waiting will not change this",
        evidence={"equal_steps": float(equal), "loss": last},
    )


def _is_frozen(window: Window) -> bool:
    last = window.values[-EQUAL_STEPS:]
    return len(last) == EQUAL_STEPS and math.isfinite(last[0]) and len(set(last)) == 1


def _roughness(losses: Window) -> float | None:
    """Median second over median first difference; None if too short, not finite, or flat up to rounding."""
    values = losses.values
    if len(values) < WINDOW or not all(map(math.isfinite, values)):
        return None
    first = [b - a for a, b in pairwise(values)]
    second = [b - a for a, b in pairwise(first)]
    size = median(map(abs, first))
    return median(map(abs, second)) / size if size > MIN_RELATIVE_CHANGE * abs(median(values)) else None
