"""T806: scale-invariant weights turn faster or slower than rate and decay say."""

from __future__ import annotations

import math
from collections.abc import Iterator
from statistics import median

from leadline.checks._check import Symptom, check
from leadline.checks._history import History
from leadline.checks._ranges import of_parameters
from leadline.checks._run_examples import DECAYED, constant, flat, sampled

FACTOR = 2.0  # between measured and expected angle; calibrated by benchmarks/alarms.py
SETTLED = 3.0  # times the scale of settling, after which balance is expected; derived: exp(-3) leaves 5 %
STEADY = (
    1.1  # ours: the rate may have changed by so much over the history; after a larger change it settles anew
)
LOST = 5.0  # ours: a factor at which the layer practically learns at another rate


@check(
    code="T806",
    name="off-equilibrium",
    since="0.1",
    needs=("update_norm",),
    sick=sampled(
        900,
        {"update_norm": flat(0.001), "weight_norm": flat(1.0)},
        layout=DECAYED,
        numbers={"lr": constant(0.1)},
    ),
    healthy=sampled(
        900,
        {"update_norm": flat(math.sqrt(2 * 0.1 * 0.05)), "weight_norm": flat(1.0)},
        layout=DECAYED,
        numbers={"lr": constant(0.1)},
    ),
    every=64,
    confirm=2,
    calm=512,
)
def off_equilibrium(history: History) -> Iterator[Symptom]:
    r"""Decayed weights in front of a norm do not turn as fast as rate and weight decay should make them.

    ## What it measures
    For each weight that is scale-invariant and decayed, the median over recent steps of $\|\Delta w\|/\|w\|$, its
    angle a step, against the one at which growth by steps and shrinking by decay balance: $\sqrt{2\eta\lambda}$ for
    SGD with rate $\eta$ and decay $\lambda$, and likewise for other optimizers (see `readings.symmetry.equilibrium`).
    Looked at only after `SETTLED` = 3 times the scale on which it settles ($1/\eta\lambda$ steps for AdamW) at a rate
    that is steady within 10 %. Fires at a factor of `FACTOR` = 2.

    ## Why it hurts
    In equilibrium every layer turns at the same pace, which is why one rate suits all. A layer that turns slower than
    that gets hardly any gradient and is only shrunk; one that turns faster is driven by noise or by a loss that pulls
    at its scale, so it is not as scale-invariant as its norm makes it look.

    ## When it is wrong
    Gradients that agree from step to step (large batches) turn weights further than uncorrelated ones.

    ## References
    Kosson et al., "Rotational equilibrium: how weight decay balances learning across neural networks", 2024.
    """
    rate = _steady_rate(history)
    moved, sizes = history.recent("update_norm"), history.recent("weight_norm")
    if rate is None or moved.steps != sizes.steps or len(moved) < 8:
        return
    ratios = {}
    for index, turn in enumerate(history.layout.rotation):
        if turn and _has_settled(history, rate, index):
            pairs = zip(moved.column(index), sizes.column(index), strict=True)
            angle = median(a / b if b > 0 else 0.0 for a, b in pairs)
            ratios[index] = angle / (turn * math.sqrt(rate))
    off = {index: each for index, each in ratios.items() if not 1 / FACTOR <= each <= FACTOR}
    if off:
        yield _symptom(history, off, rate)


def _symptom(history: History, off: dict[int, float], rate: float) -> Symptom:
    where, layers = of_parameters(history.layout, list(off))
    worst = max(off.values(), key=lambda each: abs(math.log(max(each, 1e-12))))
    return Symptom(
        severity="warning" if not 1 / LOST <= worst <= LOST else "info",
        where=where,
        layers=layers,
        since=history.began or 0,
        message=f"{len(off)} weights in front of a norm turn {worst:.2g} times as far a step as rate {rate:.3g} and "
        "their weight decay should make them in the long run",
        evidence={"angle_over_expected": worst, "weights": float(len(off)), "lr": rate},
    )


def _steady_rate(history: History) -> float | None:
    rates = history.scalars("lr").values
    if not rates or min(rates) <= 0 or max(rates) > STEADY * min(rates):
        return None
    return rates[-1]


def _has_settled(history: History, rate: float, index: int) -> bool:
    if index >= len(history.layout.settling):
        return False
    return (history.step or 0) - (history.began or 0) >= SETTLED * history.layout.settling[index] / rate
