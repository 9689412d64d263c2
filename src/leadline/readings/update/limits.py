"""The loss along the step, and the learning rates that follow: stability limit, safe rate, warm-up."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch.optim import Optimizer

from leadline.records import LinePoint
from leadline.records.update import Confidence, SharpnessKind

HALF = 0.5  # ours, and the issue's: predicted and measured "part" when they differ by half of the prediction
MOST_LOOKS = 10  # forward passes that a search may cost where the parting is far from the user's rate
REFINING = 2  # of them, once it is known between which multiples it lies
LONGEST_STRIDE = 256.0  # ours: farther than this from one look to the next, a parabola is not trusted
CLOSE = 1.25  # the search ends when the parting is bracketed within this factor
VISIBLE = (
    8.0  # roundings of a loss: where a change is that large, its ratio to the promise is off by 1/4 at most
)
BEYOND_ZERO = 2.1  # derived: a loss that stays above 0 has parted where twice its value is promised


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """What was seen along the step, nearest first."""

    slope: float
    """The promise of the step itself."""
    points: tuple[LinePoint, ...]
    parting: float | None
    is_bound: bool
    curvature: float | None
    r"""$\varphi''(0)$, from the second difference at the nearest point at which it stands out of the rounding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Start:
    """What is known before the first look: the loss, its slope along the step, and the rounding of a loss."""

    loss: float
    slope: float
    noise: float

    @property
    def nearest(self) -> float:
        """The multiple from which on a change of the loss is more than rounding."""
        return VISIBLE * self.noise / abs(self.slope)

    @property
    def zero(self) -> float:
        """A multiple at which the promise is more than there is; infinite where the loss is no positive number."""
        return BEYOND_ZERO * self.loss / abs(self.slope) if self.loss > 0 else math.inf

    def deviation(self, found: float, multiple: float) -> float:
        """|r - 1|; infinite where the loss is no number."""
        deviation = abs((found - self.loss) / (multiple * self.slope) - 1)
        return deviation if math.isfinite(deviation) else math.inf


def search(look: Callable[[float], float], loss: float, slope: float, first: float, noise: float) -> Line:
    """Find where measured and predicted change part by half, in a few looks.

    `look` gives the loss at a multiple; `first` is the loss at the step itself; `noise` is the rounding of a loss. A
    step too small for its effect to be seen is followed until it is: the parting does not depend on the rate.
    """
    losses, seen = {1.0: first}, {}
    start = _Start(loss=loss, slope=slope, noise=noise)
    if slope < 0 and math.isfinite(slope) and math.isfinite(loss):
        seen = _walk(look, start, losses)
    parting, is_bound = _parting(seen) if seen else (None, False)
    return Line(
        slope=slope,
        points=tuple(_point(c, losses[c], loss, slope, noise) for c in sorted(losses)),
        parting=parting,
        is_bound=is_bound,
        curvature=_curvature(losses, loss, slope, noise),
    )


def _walk(look: Callable[[float], float], start: _Start, losses: dict[float, float]) -> dict[float, float]:
    """Deviations by multiple; `losses` gets what was looked at."""
    seen = {1.0: start.deviation(losses[1.0], 1.0)} if start.nearest <= 1 else {}
    refined = 0
    for _ in range(MOST_LOOKS):
        following = _next(seen, start) if seen else start.nearest
        refined += _bracketed(seen)
        if following is None or following < start.nearest or refined > REFINING:
            break
        losses[following] = look(following)
        seen[following] = start.deviation(losses[following], following)
    return seen


def _bracketed(seen: dict[float, float]) -> bool:
    return any(each < HALF for each in seen.values()) and any(each >= HALF for each in seen.values())


def _next(seen: dict[float, float], start: _Start) -> float | None:
    """The next multiple: where the nearest bracket, or a quadratic loss, puts the parting."""
    inside = [c for c, deviation in seen.items() if deviation < HALF]
    outside = [c for c, deviation in seen.items() if deviation >= HALF]
    if inside and outside:
        low, high = max(inside), min(outside)
        return None if high / low < CLOSE else _between(low, seen[low], high, seen[high])
    if inside:
        c = max(inside)
        rounding = start.noise / (c * abs(start.slope))
        stride = HALF / max(seen[c], rounding, HALF / LONGEST_STRIDE)
        farther = c * max(stride, 1.5) * 1.05
        return min(farther, start.zero) if c < start.zero else farther
    c = min(outside)
    return min(c * _back(seen[c]), start.zero)


def _back(deviation: float) -> float:
    r"""By which factor to come back from beyond the parting.

    Where the loss still falls, by a part $r = 1 - d$ of the promise ($d$ is the deviation), it falls by about as much
    nearer by, where twice that is promised: $2r$. Where it rises, a parabola has the deviation in proportion to $c$.
    """
    if not math.isfinite(deviation):
        return 1 / 16
    factor = 2 * (1 - deviation) if deviation < 1 else HALF / deviation
    return min(max(factor, 1 / LONGEST_STRIDE), 0.7)


def _between(low: float, below: float, high: float, above: float) -> float:
    """Interpolated on logarithmic scales, and kept off the ends."""
    if below <= 0 or not math.isfinite(above):
        return math.sqrt(low * high)
    part = math.log(HALF / below) / math.log(above / below)
    return float(low * (high / low) ** min(max(part, 0.1), 0.9))


def _parting(seen: dict[float, float]) -> tuple[float, bool]:
    inside = [c for c, deviation in seen.items() if deviation < HALF]
    outside = [c for c, deviation in seen.items() if deviation >= HALF]
    if not outside:
        return max(inside), True
    if not inside:
        c = min(outside)
        return (c * HALF / seen[c] if math.isfinite(seen[c]) else 0.0), False
    low = max((c for c in inside if c < min(outside)), default=min(outside) / 2)
    below = seen.get(low, HALF / 2)
    return _between(low, max(below, 1e-12), min(outside), seen[min(outside)]), False


def _point(multiple: float, found: float, loss: float, slope: float, noise: float) -> LinePoint:
    known = slope != 0 and abs(multiple * slope) > noise
    return LinePoint(
        multiple=multiple, loss=found, ratio=(found - loss) / (multiple * slope) if known else None
    )


def _curvature(losses: dict[float, float], loss: float, slope: float, noise: float) -> float | None:
    """The second difference at the nearest point where it exceeds the rounding of the losses it is made of."""
    for c in sorted(losses):
        bend = losses[c] - loss - c * slope
        rounding = noise * max(1.0, abs(losses[c] / loss)) if loss else noise
        if math.isfinite(bend) and abs(bend) > 4 * rounding:
            return 2 * bend / (c * c)
    return None


# From what was seen along a step to rates: the stability limit, a safe rate, and the warm-up that leads there.
#
# Near a minimum with curvature $\lambda$ in the metric of the optimiser, steps of rate $\eta$ shrink an error
# as long as
# $\eta < 2m/\lambda$. Plain gradient descent has $m = 1$; heavy-ball momentum $\beta$ has $m = 1 + \beta$, Nesterov's
# $(1 + \beta)/(1 + 2\beta)$, and a running mean of gradients, as in Adam, $(1 + \beta_1)/(1 - \beta_1)$ (the stability
# conditions of the linear recurrences; Cohen et al., "Adaptive gradient methods at the edge of stability", 2022, for
# Adam).

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
