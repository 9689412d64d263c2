r"""From what was seen along a step to rates: the stability limit, a safe rate, and the warm-up that leads there.

Near a minimum with curvature $\lambda$ in the metric of the optimiser, steps of rate $\eta$ shrink an error as long as
$\eta < 2m/\lambda$. Plain gradient descent has $m = 1$; heavy-ball momentum $\beta$ has $m = 1 + \beta$, Nesterov's
$(1 + \beta)/(1 + 2\beta)$, and a running mean of gradients, as in Adam, $(1 + \beta_1)/(1 - \beta_1)$ (the stability
conditions of the linear recurrences; Cohen et al., "Adaptive gradient methods at the edge of stability", 2022, for
Adam).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch.optim import Optimizer

from leadline.records.update import Confidence, SharpnessKind
from leadline.updating.line import Line

WARM_UP_MEMORIES = (
    2.0  # cited: Ma and Yarats, "On the adequacy of untuned warmup for adaptive optimization", 2021
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharpness:
    r"""A curvature in units in which the limit of the rate is $2m/\lambda$."""

    value: float
    kind: SharpnessKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    stability_lr: float | None
    safe_lr: float | None
    is_bound: bool
    """The safe rate is at least this."""
    warmup_steps: int | None
    confidence: Confidence
    why: str


def along_the_step(line: Line, lr: float | None) -> Sharpness | None:
    r"""$\lambda = \Delta^T H \Delta / \Delta^T P^{-1} \Delta$ for a step $\Delta = -\eta P g$.

    The denominator is $-\eta \langle g, \Delta \rangle$, so that neither the preconditioner $P$ nor the Hessian $H$
    need be known. It is a mean over directions, and so a lower bound of the largest curvature.
    """
    if line.curvature is None or line.curvature <= 0 or line.slope >= 0 or not lr:
        return None
    return Sharpness(value=line.curvature / (-lr * line.slope), kind="along the step")


def largest_lr(optimizer: Optimizer) -> float | None:
    rates = [float(group["lr"]) for group in optimizer.param_groups if group.get("lr") is not None]
    return max(rates, default=None)


def momentum_room(group: Mapping[str, Any]) -> float:
    """The factor $m$ of the stability limit."""
    if "betas" in group:
        beta = float(group["betas"][0])
        return (1 + beta) / (1 - beta) if beta < 1 else math.inf
    beta = float(group.get("momentum") or 0.0)
    return (1 + beta) / (1 + 2 * beta) if group.get("nesterov") else 1 + beta


def first_of_many(group: Mapping[str, Any], steps: int) -> float:
    r"""How much of a sustained step the first one is: heavy-ball momentum $\beta$ adds up gradients to $1/(1-\beta)$.

    Dampening $d$ weakens all but the first gradient by $1 - d$. A running mean of gradients, as in Adam, is corrected
    for its start, so that its first step is a whole one.
    """
    beta = 0.0 if "betas" in group or steps else float(group.get("momentum") or 0.0)
    kept = 1 - float(group.get("dampening") or 0.0)
    return min((1 - beta) / kept, 1.0) if kept > 0 else 1.0


def find_limits(
    optimizer: Optimizer, line: Line, sharpness: Sharpness | None, lr: float | None, steps: int
) -> Limits:
    """Rates in the units of the user's largest one; None where nothing can be said."""
    stability = None
    if sharpness is not None and sharpness.value > 0:
        room = momentum_room(optimizer.param_groups[0]) if sharpness.kind == "lanczos" else 1.0
        stability = 2 * room / sharpness.value
    if lr is None or line.parting is None:
        return Limits(
            stability_lr=stability,
            safe_lr=None,
            is_bound=False,
            warmup_steps=None,
            confidence="low",
            why=_why_none(line, lr),
        )
    parting = line.parting * lr * first_of_many(optimizer.param_groups[0], steps)
    safe = min(parting, stability or math.inf)
    confidence, why = _confidence(line, sharpness, steps)
    return Limits(
        stability_lr=stability,
        safe_lr=safe,
        is_bound=line.is_bound and safe == parting,
        warmup_steps=_warm_up(optimizer, lr, safe) if steps == 0 else None,
        confidence=confidence,
        why=why,
    )


def _why_none(line: Line, lr: float | None) -> str:
    if lr is None:
        return "the optimiser has no learning rate"
    if not math.isfinite(line.slope):
        return "the loss or its gradient is no number"
    return "the step does not move anything" if line.slope == 0 else "the step does not go downhill"


def _warm_up(optimizer: Optimizer, lr: float, safe: float) -> int:
    r"""A linear warm-up of $T$ steps begins at $\eta/T$; that must be safe.

    With running mean squares it also has to last until these have forgotten their first few entries,
    $2/(1 - \beta_2)$ steps.
    """
    if safe >= lr:
        return 0
    first = math.ceil(lr / safe) if safe > 0 else 0
    betas = optimizer.param_groups[0].get("betas")
    memory = WARM_UP_MEMORIES / (1 - float(betas[1])) if betas and float(betas[1]) < 1 else 0.0
    return max(first, round(memory))


def _confidence(line: Line, sharpness: Sharpness | None, steps: int) -> tuple[Confidence, str]:
    if line.is_bound:
        return (
            "medium",
            "predicted and measured change agree as far as was looked: the safe rate is at least this",
        )
    if steps:
        return (
            "medium",
            "measured in the middle of training: momentum carries earlier gradients, and limits move",
        )
    if sharpness is not None and sharpness.kind == "lanczos":
        return "high", "the parting was measured, and the largest curvature too"
    return (
        "medium",
        "measured along the step only; other directions may be sharper",
    )
