r"""The loss along a step, and the learning rates that follow from it: stability limit, safe rate, warm-up.

The *parting* is the multiple of the step at which the measured change of the loss differs from the predicted one by
half of the prediction.

Near a minimum with curvature $\lambda$ in the metric of the optimizer, steps of rate $\eta$ shrink an error as long as
$\eta < 2m/\lambda$. Plain gradient descent has $m = 1$; heavy-ball momentum $\beta$ has $m = 1 + \beta$, Nesterov's
$(1 + \beta)/(1 + 2\beta)$, and a running mean of gradients, as in Adam, $(1 + \beta_1)/(1 - \beta_1)$ (the stability
conditions of the linear recurrences; Cohen et al., "Adaptive gradient methods at the edge of stability", 2022, for
Adam).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch.optim import Optimizer

from leadline.joint_optimizer import members_of
from leadline.ops.optimizers import OptimizerRule, summed_gradients
from leadline.records import LinePoint
from leadline.records.update import Confidence, SharpnessKind
from leadline.tracer.optimizer import rule_of

# Derived: along a step a quadratic loss deviates from the linear prediction by half exactly at its minimum.
PARTING_DEVIATION = 0.5
# Heuristic: bounds the cost of a search whose parting is far from the user's rate.
MAX_FORWARD_PASSES = 10
# Heuristic: two passes after the parting is bracketed bring it close enough.
MAX_REFINEMENTS = 2
# Heuristic: a parabola is not trusted farther than this factor from one point to the next.
MAX_STRIDE = 256.0
# Heuristic: the search ends when the parting is bracketed within this factor.
MAX_BRACKET_RATIO = 1.25
# Derived: where a change of the loss is this many roundings, its ratio to the prediction is off by at most 1/4.
MIN_CHANGE_ROUNDINGS = 8.0
# Derived: a loss that stays above 0 has parted where the predicted decrease is twice its value.
MAX_PREDICTED_DECREASE = 2.1
# Cited: Ma and Yarats, "On the adequacy of untuned warmup for adaptive optimization", 2021.
WARMUP_MEMORIES = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LossLine:
    """The losses along the step, nearest first."""

    slope: float
    """Predicted change of the loss by the step itself."""
    points: tuple[LinePoint, ...]
    parting: float | None
    is_bound: bool
    """The parting is at least this."""
    curvature: float | None
    r"""$\varphi''(0)$, from the second difference at the nearest point at which it exceeds the rounding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Start:
    """The loss before the step, its slope along the step, and the rounding of a loss."""

    loss: float
    slope: float
    noise: float

    @property
    def min_multiple(self) -> float:
        """The multiple from which a change of the loss exceeds rounding."""
        return MIN_CHANGE_ROUNDINGS * self.noise / abs(self.slope)

    @property
    def max_multiple(self) -> float:
        """A multiple at which more decrease is predicted than is possible; infinite unless the loss is positive."""
        return MAX_PREDICTED_DECREASE * self.loss / abs(self.slope) if self.loss > 0 else math.inf

    def deviation(self, loss: float, multiple: float) -> float:
        """|measured / predicted - 1| of the change of the loss; infinite where the loss is not finite."""
        deviation = abs((loss - self.loss) / (multiple * self.slope) - 1)
        return deviation if math.isfinite(deviation) else math.inf


def search(
    loss_at: Callable[[float], float], loss: float, slope: float, first: float, noise: float
) -> LossLine:
    """Search the parting in a few forward passes.

    `loss_at` gives the loss at a multiple; `first` is the loss at the step itself; `noise` is the rounding of a loss. A
    step whose effect is below rounding is lengthened until the effect shows: the parting does not depend on the rate.
    """
    losses: dict[float, float] = {1.0: first}
    deviations: dict[float, float] = {}
    start = _Start(loss=loss, slope=slope, noise=noise)
    if slope < 0 and math.isfinite(slope) and math.isfinite(loss):
        deviations = _walk(loss_at, start, losses)
    parting, is_bound = _parting(deviations) if deviations else (None, False)
    return LossLine(
        slope=slope,
        points=tuple(_point(c, losses[c], start) for c in sorted(losses)),
        parting=parting,
        is_bound=is_bound,
        curvature=_curvature(losses, start),
    )


def _walk(loss_at: Callable[[float], float], start: _Start, losses: dict[float, float]) -> dict[float, float]:
    """Deviations by multiple; adds every measured loss to `losses`."""
    deviations = {1.0: start.deviation(losses[1.0], 1.0)} if start.min_multiple <= 1 else {}
    refinements = 0
    for _ in range(MAX_FORWARD_PASSES):
        following = _next(deviations, start) if deviations else start.min_multiple
        refinements += _is_bracketed(deviations)
        if following is None or following < start.min_multiple or refinements > MAX_REFINEMENTS:
            break
        losses[following] = loss_at(following)
        deviations[following] = start.deviation(losses[following], following)
    return deviations


def _split(deviations: dict[float, float]) -> tuple[list[float], list[float]]:
    """Multiples before and after the parting."""
    before = [c for c, deviation in deviations.items() if deviation < PARTING_DEVIATION]
    after = [c for c, deviation in deviations.items() if deviation >= PARTING_DEVIATION]
    return before, after


def _is_bracketed(deviations: dict[float, float]) -> bool:
    before, after = _split(deviations)
    return bool(before and after)


def _next(deviations: dict[float, float], start: _Start) -> float | None:
    """The next multiple: where the nearest bracket, or a quadratic loss, puts the parting."""
    before, after = _split(deviations)
    if before and after:
        low, high = max(before), min(after)
        if high / low < MAX_BRACKET_RATIO:
            return None
        return _between(low, deviations[low], high, deviations[high])
    if before:
        c = max(before)
        rounding = start.noise / (c * abs(start.slope))
        stride = PARTING_DEVIATION / max(deviations[c], rounding, PARTING_DEVIATION / MAX_STRIDE)
        farther = c * max(stride, 1.5) * 1.05
        return min(farther, start.max_multiple) if c < start.max_multiple else farther
    c = min(after)
    return min(c * _shrink_factor(deviations[c]), start.max_multiple)


def _shrink_factor(deviation: float) -> float:
    r"""The factor by which to shorten a multiple beyond the parting.

    Where the loss still falls, by a part $r = 1 - d$ of the prediction ($d$ is the deviation), it falls by about as
    much at a nearer point where twice that is predicted: $2r$. Where it rises, a parabola has a deviation in proportion
    to the multiple.
    """
    if not math.isfinite(deviation):
        return 1 / 16
    factor = 2 * (1 - deviation) if deviation < 1 else PARTING_DEVIATION / deviation
    return min(max(factor, 1 / MAX_STRIDE), 0.7)


def _between(low: float, below: float, high: float, above: float) -> float:
    """The parting interpolated on logarithmic scales, away from both ends."""
    if below <= 0 or not math.isfinite(above):
        return math.sqrt(low * high)
    part = math.log(PARTING_DEVIATION / below) / math.log(above / below)
    return float(low * (high / low) ** min(max(part, 0.1), 0.9))


def _parting(deviations: dict[float, float]) -> tuple[float, bool]:
    """The parting, and whether it is only a lower bound."""
    before, after = _split(deviations)
    if not after:
        return max(before), True
    if not before:
        c = min(after)
        finite = math.isfinite(deviations[c])
        return (c * PARTING_DEVIATION / deviations[c] if finite else 0.0), False
    low = max((c for c in before if c < min(after)), default=min(after) / 2)
    below = deviations.get(low, PARTING_DEVIATION / 2)
    return _between(low, max(below, 1e-12), min(after), deviations[min(after)]), False


def _point(multiple: float, loss: float, start: _Start) -> LinePoint:
    is_visible = start.slope != 0 and abs(multiple * start.slope) > start.noise
    ratio = (loss - start.loss) / (multiple * start.slope) if is_visible else None
    return LinePoint(multiple=multiple, loss=loss, ratio=ratio)


def _curvature(losses: dict[float, float], start: _Start) -> float | None:
    """The second difference at the nearest point where it exceeds the rounding of its losses."""
    for c in sorted(losses):
        bend = losses[c] - start.loss - c * start.slope
        rounding = start.noise * max(1.0, abs(losses[c] / start.loss)) if start.loss else start.noise
        if math.isfinite(bend) and abs(bend) > 4 * rounding:
            return 2 * bend / (c * c)
    return None


# From the loss along a step to rates.


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharpness:
    r"""A curvature $\lambda$ in units in which the limit of the rate is $2m/\lambda$."""

    value: float
    kind: SharpnessKind


@dataclass(frozen=True, slots=True, kw_only=True)
class RateLimits:
    """Learning rates that follow from the loss along the step."""

    stability_lr: float | None
    safe_lr: float | None
    is_bound: bool
    """The safe rate is at least this."""
    warmup_steps: int | None
    confidence: Confidence
    why: str


def sharpness_along(line: LossLine, lr: float | None) -> Sharpness | None:
    r"""$\lambda = \Delta^T H \Delta / \Delta^T P^{-1} \Delta$ for a step $\Delta = -\eta P g$.

    The denominator is $-\eta \langle g, \Delta \rangle$, so that neither the preconditioner $P$ nor the Hessian $H$
    need be known. It is a mean over directions, and therefore a lower bound of the largest curvature.
    """
    if line.curvature is None or line.curvature <= 0 or line.slope >= 0 or not lr:
        return None
    return Sharpness(value=line.curvature / (-lr * line.slope), kind="along the step")


def largest_lr(optimizer: Optimizer) -> float | None:
    """The largest learning rate among the parameter groups; None if no group has one."""
    rates = [float(group["lr"]) for group in optimizer.param_groups if group.get("lr") is not None]
    return max(rates, default=None)


def momentum_factor(group: Mapping[str, Any], rule: OptimizerRule | None) -> float:
    """The factor $m$ of the stability limit."""
    if "betas" in group:
        beta = float(group["betas"][0])
        return (1 + beta) / (1 - beta) if beta < 1 else math.inf
    if rule is not None and not rule.sums_momentum:
        return 1.0
    beta = float(group.get("momentum") or 0.0)
    return (1 + beta) / (1 + 2 * beta) if group.get("nesterov") else 1 + beta


def first_step_share(optimizer: Optimizer, steps: int) -> float:
    r"""The first step over a sustained one: heavy-ball momentum $\beta$ sums gradients to $1/(1-\beta)$ of one.

    Dampening $d$ weakens all but the first gradient by $1 - d$. A running mean of gradients, as in Adam, is corrected
    for its start, and a step that only keeps the direction of its momentum, as Muon's, has one length: there the first
    step is a whole one. Of several groups the one with the smallest share counts.
    """
    if steps:
        return 1.0
    gains = (_sustained_gain(group, rule) for group, rule in _groups(optimizer))
    return 1 / max(gains, default=1.0)


def _sustained_gain(group: Mapping[str, Any], rule: OptimizerRule | None) -> float:
    sums = "betas" not in group if rule is None else rule.sums_momentum
    return summed_gradients(group) if sums else 1.0


def _groups(optimizer: Optimizer) -> Iterator[tuple[Mapping[str, Any], OptimizerRule | None]]:
    for member in members_of(optimizer):
        for group in member.param_groups:
            yield group, rule_of(member, group)


def find_rate_limits(
    optimizer: Optimizer, line: LossLine, sharpness: Sharpness | None, lr: float | None, steps: int
) -> RateLimits:
    """Limits in the units of the user's largest rate; None for a limit that cannot be derived."""
    stability = None
    if sharpness is not None and sharpness.value > 0:
        factor = momentum_factor(*next(_groups(optimizer))) if sharpness.kind == "lanczos" else 1.0
        stability = 2 * factor / sharpness.value
    if lr is None or line.parting is None:
        return RateLimits(
            stability_lr=stability,
            safe_lr=None,
            is_bound=False,
            warmup_steps=None,
            confidence="low",
            why=_why_no_safe_rate(line, lr),
        )
    parting = line.parting * lr * first_step_share(optimizer, steps)
    safe = min(parting, stability or math.inf)
    confidence, why = _confidence(line, sharpness, steps)
    return RateLimits(
        stability_lr=stability,
        safe_lr=safe,
        is_bound=line.is_bound and safe == parting,
        warmup_steps=_warmup_steps(optimizer, lr, safe) if steps == 0 else None,
        confidence=confidence,
        why=why,
    )


def _why_no_safe_rate(line: LossLine, lr: float | None) -> str:
    if lr is None:
        return "the optimizer has no learning rate"
    if not math.isfinite(line.slope):
        return "the loss or its gradient is not finite"
    return "the step moves no parameter" if line.slope == 0 else "the step does not go downhill"


def _warmup_steps(optimizer: Optimizer, lr: float, safe: float) -> int:
    r"""Length $T$ of a linear warm-up: it begins at the rate $\eta/T$, which must be safe.

    With running mean squares it also has to last until these have forgotten their first few entries,
    $2/(1 - \beta_2)$ steps.
    """
    if safe >= lr:
        return 0
    shortest = math.ceil(lr / safe) if safe > 0 else 0
    betas = optimizer.param_groups[0].get("betas")
    memory = WARMUP_MEMORIES / (1 - float(betas[1])) if betas and float(betas[1]) < 1 else 0.0
    return max(shortest, round(memory))


def _confidence(line: LossLine, sharpness: Sharpness | None, steps: int) -> tuple[Confidence, str]:
    if line.is_bound:
        return (
            "medium",
            "predicted and measured change agree at every rate tried: the safe rate is at least this",
        )
    if steps:
        return "medium", "measured during training: momentum carries earlier gradients, and limits move"
    if sharpness is not None and sharpness.kind == "lanczos":
        return "high", "both the largest curvature and the loss along the step were measured"
    return "medium", "measured only along the step; other directions may be sharper"
