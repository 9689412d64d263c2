"""T806: scale-invariant weights turn faster or slower than learning rate and weight decay imply."""

from __future__ import annotations

import math
from collections.abc import Iterator
from statistics import median

from leadline.checks._check import Symptom, check
from leadline.checks._examples import DECAYED, constant, every_block, vector_history
from leadline.checks._history import History
from leadline.checks._ranges import locate_parameters

# Calibrated by benchmarks/alarms.py: factor between measured and expected angle.
MIN_FACTOR = 2.0
# Heuristic: a factor at which the layer practically learns at another rate.
MIN_WARNING_FACTOR = 5.0
# Derived: time constants after which equilibrium is expected; exp(-3) leaves 5 % of the distance.
SETTLING_TIMES = 3.0
# Heuristic: largest over smallest learning rate of the history; after a larger change the weights settle anew.
MAX_RATE_RATIO = 1.1
# Heuristic: recordings for a median that one odd batch does not move.
MIN_RECORDINGS = 8


@check(
    code="T806",
    name="off-equilibrium",
    since="0.1.0",
    needs=("update_norm",),
    sick=vector_history(
        900,
        {"update_norm": every_block(0.001), "weight_norm": every_block(1.0)},
        layout=DECAYED,
        numbers={"lr": constant(0.1)},
    ),
    healthy=vector_history(
        900,
        {"update_norm": every_block(math.sqrt(2 * 0.1 * 0.05)), "weight_norm": every_block(1.0)},
        layout=DECAYED,
        numbers={"lr": constant(0.1)},
    ),
    every=64,
    confirm=2,
    calm=512,
)
def off_equilibrium(history: History) -> Iterator[Symptom]:
    r"""Decayed weights before a norm do not turn as fast as learning rate and weight decay imply.

    ## What it measures
    For each weight that is scale-invariant and decayed, the median over recent steps of $\|\Delta w\|/\|w\|$, its
    angle per step, against the angle at which growth by steps and shrinking by decay balance: $\sqrt{2\eta\lambda}$ for
    SGD with learning rate $\eta$ and decay $\lambda$, and likewise for other optimizers (see
    `readings.symmetry.equilibrium`). It is judged only after `SETTLING_TIMES` = 3 times the scale on which it settles
    ($1/\eta\lambda$ steps for AdamW), at a learning rate that is steady within 10 %. Fires at a factor of
    `MIN_FACTOR` = 2; a warning from `MIN_WARNING_FACTOR` = 5.

    ## Why it hurts
    In equilibrium every layer turns at the same pace, which is why one learning rate suits all. A layer that turns
    slower gets hardly any gradient and is only shrunk. One that turns faster is driven by noise, or by a loss that
    depends on its scale, so it is less scale-invariant than the norm after it suggests.

    ## When it is wrong
    Gradients that agree from step to step (large batches) turn weights further than uncorrelated ones.

    ## References
    Kosson et al., "Rotational equilibrium: how weight decay balances learning across neural networks", 2024.
    """
    rate = _steady_rate(history)
    updates, weights = history.recent("update_norm"), history.recent("weight_norm")
    if rate is None or updates.steps != weights.steps or len(updates) < MIN_RECORDINGS:
        return
    ratios = {}
    for index, rotation in enumerate(history.layout.rotation):
        if rotation and _has_settled(history, rate, index):
            pairs = zip(updates.column(index), weights.column(index), strict=True)
            angle = median(update / weight if weight > 0 else 0.0 for update, weight in pairs)
            ratios[index] = angle / (rotation * math.sqrt(rate))
    outside = {index: ratio for index, ratio in ratios.items() if not 1 / MIN_FACTOR <= ratio <= MIN_FACTOR}
    if outside:
        yield _symptom(history, outside, rate)


def _symptom(history: History, ratios: dict[int, float], rate: float) -> Symptom:
    where, layers = locate_parameters(history.layout, list(ratios))
    worst = max(ratios.values(), key=lambda each: abs(math.log(max(each, 1e-12))))
    if worst > 1:
        action = "Lower the learning rate of these weights, or remove loss terms that depend on their scale."
    else:
        action = "Check that the loss still depends on these weights, or raise their learning rate."
    return Symptom(
        severity="warning" if not 1 / MIN_WARNING_FACTOR <= worst <= MIN_WARNING_FACTOR else "info",
        where=where,
        layers=layers,
        since=history.first_step or 0,
        message=f"{len(ratios)} weights before a norm turn {worst:.2g} times as far per step as learning rate "
        f"{rate:.3g} and their weight decay imply in the long run",
        action=action,
        evidence={"angle_over_expected": worst, "weights": float(len(ratios)), "lr": rate},
    )


def _steady_rate(history: History) -> float | None:
    rates = history.scalars("lr").values
    if not rates or min(rates) <= 0 or max(rates) > MAX_RATE_RATIO * min(rates):
        return None
    return rates[-1]


def _has_settled(history: History, rate: float, index: int) -> bool:
    if index >= len(history.layout.settling):
        return False
    covered = (history.step or 0) - (history.first_step or 0)
    return covered >= SETTLING_TIMES * history.layout.settling[index] / rate
