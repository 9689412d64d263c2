r"""The loss along the step: $\varphi(c) = L(\theta + c\,\Delta\theta)$, at a few multiples $c$.

Its slope at 0 is known exactly, $\varphi'(0) = \langle g, \Delta\theta \rangle$. The ratio
$r(c) = (\varphi(c) - \varphi(0)) / (c\,\varphi'(0))$ is 1 where the loss is linear; for a quadratic loss
$r(c) = 1 - c/c^*$, where $c^* = -2\varphi'(0)/\varphi''(0)$ is the multiple at which the gain is used up again.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from leadline.records import LinePoint

HALF = 0.5  # ours, and the issue's: predicted and measured "part" when they differ by half of the prediction
MOST_LOOKS = 3  # forward passes spent on the search; each costs a third of a step
FARTHEST = 64.0  # multiples of the user's step beyond which nobody goes
CLOSE = 1.25  # the search ends when the parting is bracketed within this factor


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """What was seen along the step, nearest first."""

    points: tuple[LinePoint, ...]
    parting: float | None
    is_bound: bool
    curvature: float | None
    r"""$\varphi''(0)$, from the second difference at the nearest point at which it stands out of the rounding."""


def search(look: Callable[[float], float], loss: float, slope: float, first: float, noise: float) -> Line:
    """Find where measured and predicted change part by half, in a few looks.

    `look` gives the loss at a multiple; `first` is the loss at the step itself; `noise` is the rounding of a loss.
    """
    seen = {1.0: _deviation(first, loss, slope, 1.0)}
    losses = {1.0: first}
    if slope < 0 and abs(slope) > noise:
        for _ in range(MOST_LOOKS):
            following = _next(seen, noise / abs(slope))
            if following is None:
                break
            losses[following] = look(following)
            seen[following] = _deviation(losses[following], loss, slope, following)
    parting, is_bound = _parting(seen) if slope < 0 else (None, False)
    points = tuple(_point(c, losses[c], loss, slope, noise) for c in sorted(seen))
    return Line(
        points=points, parting=parting, is_bound=is_bound, curvature=_curvature(losses, loss, slope, noise)
    )


def _deviation(found: float, loss: float, slope: float, multiple: float) -> float:
    """|r - 1|; infinite where the loss is no number."""
    deviation = abs((found - loss) / (multiple * slope) - 1) if slope else math.inf
    return deviation if math.isfinite(deviation) else math.inf


def _next(seen: dict[float, float], noise: float) -> float | None:
    """The next multiple: where the nearest bracket, or a quadratic loss, puts the parting."""
    inside = [c for c, deviation in seen.items() if deviation < HALF]
    outside = [c for c, deviation in seen.items() if deviation >= HALF]
    if inside and outside:
        low, high = max(inside), min(outside)
        return None if high / low < CLOSE else _between(low, seen[low], high, seen[high])
    if inside:
        c = max(inside)
        factor = HALF / max(seen[c], noise / c, HALF / 16)
        return None if c >= FARTHEST else min(c * max(factor, 1.5) * 1.05, FARTHEST)
    c = min(outside)
    factor = HALF / seen[c] if math.isfinite(seen[c]) else 1 / 16
    return c * min(max(factor, 1 / 256), 0.7)


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
    for c in sorted(losses):
        bend = losses[c] - loss - c * slope
        if math.isfinite(bend) and abs(bend) > 4 * noise:
            return 2 * bend / (c * c)
    return None
