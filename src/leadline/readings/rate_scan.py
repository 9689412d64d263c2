"""Measure the loss after one step over learning rates, and undo every step."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from leadline import __version__
from leadline.case import Case, Progress
from leadline.errors import InputError
from leadline.readings.update import tensor_sums as sums
from leadline.readings.update.direction import find_direction
from leadline.readings.update.probe import StepProbe, open_probe
from leadline.readings.update.reading import read_update
from leadline.records import RateScan, Update

# Heuristic: decades below and above the user's rate, and points per decade; a valley is about a decade wide.
MAX_DECADES = 3
POINTS_PER_DECADE = 4


def scan_rates(case: Case, progress: Progress | None = None) -> RateScan:
    """The loss after one step at rates around the optimizer's own and the safe one; everything is restored."""
    start = time.perf_counter()
    step = read_update(case, None)
    if not step.lr:
        raise InputError(
            expected="an optimizer with a learning rate above 0",
            got=f"{step.optimizer} with a rate of {step.lr}",
            fix="give the optimizer a rate, for instance lr=1e-3; the scan covers three decades around it",
        )
    rates = _rates(step)
    with open_probe(case) as probe:
        loss_at, slope = _step_line(probe)
        losses = []
        for place, rate in enumerate(rates):
            if progress is not None:
                progress(place, len(rates), f"one step at rate {rate:.2g}")
            loss = loss_at(rate / step.lr)
            losses.append(loss if math.isfinite(loss) else None)
    return RateScan(
        leadline=__version__,
        model=type(case.model).__name__,
        optimizer=step.optimizer,
        lr=step.lr,
        loss=step.loss,
        rates=rates,
        losses=tuple(losses),
        predicted=tuple(step.loss + slope * rate / step.lr for rate in rates),
        safe_lr=step.safe_lr,
        safe_lr_is_bound=step.safe_lr_is_bound,
        stability_lr=step.stability_lr,
        seconds=time.perf_counter() - start,
    )


def _step_line(probe: StepProbe) -> tuple[Callable[[float], float], float]:
    """The loss at a multiple of the step, and the change that the gradient predicts for the whole step."""
    _, _, grads = probe.gradient()
    probe.step(None)
    deltas = sums.differences(probe.parameters, probe.start)
    along = find_direction(probe, deltas, sum(sums.inner_products(grads, deltas)), grads)

    def loss_at(multiple: float) -> float:
        probe.move(along.deltas, multiple / along.factor)
        return probe.evaluate()[0]

    return loss_at, along.slope


def _rates(step: Update) -> tuple[float, ...]:
    """Rates in equal ratios, from below the lower of the user's and the safe rate to above the higher."""
    assert step.lr is not None  # checked by the caller
    marks = [step.lr, *([step.safe_lr] if step.safe_lr else [])]
    low, high = math.log10(min(marks)) - 1.5, math.log10(max(marks)) + 1.5
    middle = math.log10(step.lr)
    low, high = max(low, middle - 2 * MAX_DECADES), min(high, middle + 2 * MAX_DECADES)
    points = max(round((high - low) * POINTS_PER_DECADE), 2)
    return tuple(10 ** (low + (high - low) * place / points) for place in range(points + 1))
