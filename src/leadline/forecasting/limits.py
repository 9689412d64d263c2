r"""How deep a family goes: where its first step leaves the linear regime, and where its signal gives out.

The step: the multiple $c(N)$ of the user's step at which measured and predicted change of the loss part by half falls
like a power of depth. Beyond the depth at which it is `PROMISE` the first step is not what the gradient promises (a
warm-up is needed); beyond that at which it is one over `FAILS` training at that rate failed in about half of all
cases tried. The signal: e-folds of a geometric law grow in proportion to depth, up to `REACH`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from msgspec.structs import replace

from leadline.forecasting.fit import Curve, crossing, deeper_part, interval, linear_crossing
from leadline.records import DepthLimit, DepthPoint
from leadline.records.forecast import Cause
from leadline.rules.depth_law import FAR, REACH
from leadline.rules.families import family_of
from leadline.rules.step_law import FAILS

WIDEST = 4.0  # ours: from half to twice a depth; an interval that is wider decides nothing
PROMISE = 1.0  # derived: at the parting itself half of the promised gain is lost
GEOMETRIC = 0.5  # ours: e-folds that grow less than half as fast as depth are a power law, which has no reach


def find_limits(
    points: Sequence[DepthPoint], depths: Sequence[int], optimizer: str
) -> tuple[DepthLimit, ...]:
    """Every limit that the points show, the nearest first."""
    found = [*_step_limits(points, depths, optimizer), *_signal_limits(points, depths), *_broken(points)]
    return tuple(sorted(found, key=lambda each: each.depth))


def by_seed(points: Sequence[DepthPoint], read: Callable[[DepthPoint], float | None]) -> list[Curve]:
    """One curve a seed of a quantity by depth, where it was measured."""
    seeds = sorted({point.seed for point in points})
    return [
        {p.depth: value for p in points if p.seed == seed and (value := read(p)) is not None}
        for seed in seeds
    ]


def log_parting(point: DepthPoint) -> float | None:
    """A parting that was not reached is no measurement."""
    if point.parting is None or point.parting_is_bound:
        return None
    return math.log(point.parting) if point.parting > 0 else -math.inf


def levels(optimizer: str) -> Mapping[Cause, tuple[float, str]]:
    """For each limit of the step, the multiple at which it lies and what happens there.

    An optimiser of unknown kind is judged like SGD, which bears less.
    """
    fails = FAILS[family_of(optimizer) or "sgd"]
    return {
        "promise": (PROMISE, "the first step loses half of the decrease that its gradient promises: warm up"),
        "step": (
            1 / fails,
            f"the rate is more than {fails:.0f} times a safe one: training is likely to fail",
        ),
    }


def _step_limits(points: Sequence[DepthPoint], depths: Sequence[int], optimizer: str) -> list[DepthLimit]:
    curves, used, found = by_seed(points, log_parting), deeper_part(depths), []
    for cause, (level, words) in levels(optimizer).items():
        crossings = [at for curve in curves if (at := crossing(curve, used, math.log(level))) is not None]
        if len(crossings) * 2 > len(curves):
            found.append(_limit(cause, crossings, depths, words))
    return found


def _signal_limits(points: Sequence[DepthPoint], depths: Sequence[int]) -> list[DepthLimit]:
    readers: Mapping[Cause, Callable[[DepthPoint], float | None]] = {
        "forward": lambda point: point.forward_e_folds,
        "backward": lambda point: point.backward_e_folds,
    }
    found = []
    for cause, read in readers.items():
        curves = by_seed(points, lambda point, read=read: _magnitude(read(point)))  # type: ignore[misc]
        grows = any((value := read(point)) is not None and value > 0 for point in points)
        reach = FAR if grows and all(point.normalised for point in points) else REACH
        curves = [curve for curve in curves if _is_geometric(curve)]
        crossings = [at for curve in curves if (at := linear_crossing(curve, depths, reach)) is not None]
        if len(crossings) * 2 > len({point.seed for point in points}):
            what = "activations" if cause == "forward" else "gradients"
            words = f"{what} change by more than {reach:.0f} e-folds from one end to the other"
            found.append(_limit(cause, crossings, depths, words))
    return found


def _magnitude(change: float | None) -> float | None:
    return None if change is None else abs(change)


def _is_geometric(curve: Curve) -> bool:
    """Whether e-folds grow in proportion to depth: from the shallowest to the deepest at least half as fast."""
    known = {depth: value for depth, value in curve.items() if math.isfinite(value)}
    if len(known) < 2:
        return False
    first, last = min(known), max(known)
    growth = known[last] / known[first] if known[first] > 0 else math.inf
    return growth > GEOMETRIC * last / first and known[last] > 1.0


def _broken(points: Sequence[DepthPoint]) -> list[DepthLimit]:
    sick = [
        point.depth
        for point in points
        if not math.isfinite(point.loss) or not math.isfinite(point.grad_square)
    ]
    if not sick:
        return []
    words = "the loss or a gradient is no finite number"
    message = f"from depth {min(sick)} on {words}"
    return [
        DepthLimit(
            cause="non-finite", depth=min(sick), low=None, high=None, extrapolated=False, message=message
        )
    ]


def _limit(cause: Cause, crossings: Sequence[float], depths: Sequence[int], words: str) -> DepthLimit:
    """Averaged over seeds on a logarithmic scale, on which the fit is a line."""
    found = interval([math.log(max(each, 1e-3)) for each in crossings])
    depth = math.exp(found.mean)
    low = None if found.low is None else math.exp(found.low)
    high = None if found.high is None else _exp(found.high)
    made = DepthLimit(
        cause=cause,
        depth=depth,
        low=low,
        high=high,
        extrapolated=not depths[0] <= depth <= depths[-1],
        message=f"beyond depth {depth:.3g} {words}",
    )
    return replace(made, message=f"undecided, use more seeds or depths: {words}") if is_wide(made) else made


def is_wide(limit: DepthLimit) -> bool:
    """Whether the seeds disagree so much that the depth says nothing."""
    return limit.low is not None and limit.high is not None and limit.high > WIDEST * limit.low


def _exp(power: float) -> float:
    return math.exp(power) if power < 700 else math.inf
