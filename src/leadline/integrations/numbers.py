"""The numbers that trackers are sent: twenty for the whole model, never one a layer."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from leadline.alarms import History

DIRECT = (
    "loss",
    "lr",
    "grad_norm",
    "update_norm",
    "weight_norm",
    "grad_clip",
    "loss_scale",
    "non_finite",
)
WORST: dict[str, Callable[[Sequence[float]], float]] = {
    "branch_skip": max,
    "dead": max,
    "saturated": max,
    "likeness": max,
    "attention_logit": max,
    "attention_entropy": min,
}
NAMES = (
    *DIRECT,
    "update_over_weight",
    "gradient_spread",
    "signal_gain",
    "gradient_gain",
    *WORST,
    "overhead",
    "alerts",
)
"""All names that may be sent."""


def numbers(history: History, *, overhead: float, alerts: int) -> dict[str, float]:
    """What is known of the last steps; a name that was never measured is left out.

    `update_over_weight` is the norm of the step over that of the weights; `gradient_spread` the decades between the
    largest and the smallest gradient norm of a parameter; `signal_gain` and `gradient_gain` how many times the second
    moment of the signal grows from the first block to the last, and that of the gradient from the last to the first.
    Of what is sampled for each block the worst one is taken.
    """
    found = {name: history.latest(name) for name in DIRECT}
    found |= {
        "update_over_weight": _ratio(history.latest("update_norm"), history.latest("weight_norm")),
        "gradient_spread": _spread(_last(history, "grad_norm")),
        "signal_gain": _gain(_last(history, "forward_ms")),
        "gradient_gain": _gain(_last(history, "backward_ms")[::-1]),
    }
    for name, worst in WORST.items():
        known = [each for each in _last(history, name) if math.isfinite(each)]
        found[name] = worst(known) if known else None
    found |= {"overhead": overhead, "alerts": float(alerts)}
    return {name: value for name, value in found.items() if value is not None}


def _last(history: History, name: str) -> Sequence[float]:
    rows = history.recent(name).rows
    return rows[-1] if rows else ()


def _ratio(above: float | None, below: float | None) -> float | None:
    return above / below if above is not None and below else None


def _spread(norms: Sequence[float]) -> float | None:
    known = [each for each in norms if 0 < each < math.inf]
    return math.log10(max(known) / min(known)) if known else None


def _gain(moments: Sequence[float]) -> float | None:
    known = [each for each in moments if 0 < each < math.inf]
    return known[-1] / known[0] if len(known) > 1 else None
