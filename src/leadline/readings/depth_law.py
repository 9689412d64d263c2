"""Power laws in depth: fits with intervals, the depths where they cross a limit, and extrapolation."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from leadline.errors import InputError
from leadline.ops.optimizers import family_of
from leadline.readings.limits import HALF_FAIL_RATE_RATIO, MAX_EFOLDS_ADAM, MAX_EFOLDS_SGD
from leadline.records import BlockStep, DepthLimit, DepthPoint, Exponent, Profile, Update
from leadline.records.forecast import Cause

DEEP = (
    8  # measured by benchmarks/update_exponents.py: below, corrections in 1/N shift a slope by more than 0.1
)
FEWEST = 3  # depths for a slope: with two, a bend cannot be told from a law
# Two-sided 95 % quantiles of Student's t for 1, 2, ... degrees of freedom (standard table); then the normal one.
STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
STUDENT_MORE, NORMAL = 2.228, 1.960

Curve = Mapping[int, float]
"""Natural logarithm of a quantity, by depth."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    mean: float
    low: float | None
    high: float | None


def deeper_part(depths: Sequence[int]) -> tuple[int, ...]:
    """The depths that a law of depth is fitted on: from 8 blocks on, or the deepest three."""
    deep = [depth for depth in depths if depth >= DEEP]
    return tuple(deep if len(deep) >= FEWEST else depths[-FEWEST:])


def fit_exponent(curves: Sequence[Curve], depths: Sequence[int]) -> Exponent | None:
    """Slope of log quantity against log depth, one curve a seed; None if no seed has two finite points."""
    used = deeper_part(depths)
    slopes = [line[0] for curve in curves if (line := fit_log_line(curve, used)) is not None]
    if not slopes:
        return None
    found = mean_interval(slopes)
    return Exponent(value=found.mean, low=found.low, high=found.high, seeds=len(slopes), depths=used)


def fit_log_line(curve: Curve, depths: Sequence[int]) -> tuple[float, float] | None:
    """Slope and intercept of a least-squares line through (log depth, log quantity)."""
    points = [
        (math.log(depth), curve[depth]) for depth in depths if math.isfinite(curve.get(depth, math.nan))
    ]
    if len(points) < 2:
        return None
    fitted = statistics.linear_regression(*zip(*points, strict=True))
    return fitted.slope, fitted.intercept


def crossing(curve: Curve, depths: Sequence[int], level: float) -> float | None:
    """Depth at which the fitted power law falls through `level` (a logarithm); None if it does not fall."""
    line = fit_log_line(curve, depths)
    if line is None or line[0] >= 0:
        return None
    power = (level - line[1]) / line[0]
    return math.exp(power) if power < math.log(1e9) else None


def linear_crossing(curve: Curve, depths: Sequence[int], level: float) -> float | None:
    """Depth at which a quantity that grows in proportion to depth (e-folds do) reaches `level`."""
    points = [(depth, curve[depth]) for depth in depths if math.isfinite(curve.get(depth, math.nan))]
    if len(points) < 2:
        return None
    fitted = statistics.linear_regression(*zip(*points, strict=True))
    return (level - fitted.intercept) / fitted.slope if fitted.slope > 0 else None


def mean_interval(samples: Sequence[float]) -> Interval:
    """Mean and its 95 % interval by Student's t; no interval for a single sample."""
    mean = statistics.fmean(samples)
    if len(samples) < 2:
        return Interval(mean=mean, low=None, high=None)
    half = student_quantile(len(samples) - 1) * statistics.stdev(samples) / math.sqrt(len(samples))
    return Interval(mean=mean, low=mean - half, high=mean + half)


def student_quantile(freedom: int) -> float:
    if freedom <= len(STUDENT):
        return STUDENT[freedom - 1]
    return STUDENT_MORE if freedom < 30 else NORMAL


# How deep a family goes: where its first step leaves the linear regime, and where its signal gives out.
#
# The step: the multiple $c(N)$ of the user's step at which measured and predicted change of the loss part by half falls
# like a power of depth. Beyond the depth at which it is `PROMISE` the first step is not what the gradient promises (a
# warm-up is needed); beyond that at which it is one over `HALF_FAIL_RATE_RATIO` training at that rate failed in
# about half of all cases tried. The signal: e-folds of a geometric law grow in proportion to depth, up to
# `MAX_EFOLDS_SGD`.

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
    fails = HALF_FAIL_RATE_RATIO[family_of(optimizer) or "sgd"]
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
        reach = MAX_EFOLDS_ADAM if grows and all(point.normalised for point in points) else MAX_EFOLDS_SGD
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
    found = mean_interval([math.log(max(each, 1e-3)) for each in crossings])
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


# A forecast from the blocks of a single model: what more blocks of the same kind, unscaled, would do.
#
# The last $n$ blocks of a stack are what a stack of $n$ blocks would be, seen from the loss. So sums over the last $n$
# blocks, for growing $n$, show the power of depth in the predicted change of the loss. Where the step leaves the linear
# regime is carried over as $c(N') = c(N)\,(N'/N)^{-p}$, with that power $p$: both slope and curvature along the step
# are sums over blocks, the second over pairs of them.

FARTHEST = 1e9  # ours: nobody builds this deep, and a law read off few blocks does not hold so far
FEWEST_BLOCKS = 8  # ours: with fewer blocks their sums show the ends of the stack, not its law


def repeated(profile: Profile, update: Update) -> list[BlockStep]:
    """The steps of the repeated blocks, from the last to the first."""
    found = [each for each in update.blocks if each.repeated]
    if len(found) < FEWEST_BLOCKS:
        raise InputError(
            expected=f"a model of at least {FEWEST_BLOCKS} repeating blocks, or a function that builds it at a depth",
            got=f"{profile.model} with {len(found)} such blocks",
            fix="write def build(depth): ... that returns the Case of that depth, and pass leadline.forecast(build)",
        )
    return found[::-1]


def exponents_of(steps: Sequence[BlockStep]) -> dict[str, Exponent]:
    """Powers of the number of blocks in the gradient's square and in the predicted change of the loss."""
    readers: dict[str, Callable[[BlockStep], float]] = {
        "grad_square": lambda each: each.grad_square,
        "loss_change": lambda each: -each.predicted,
    }
    found = {name: _growth([read(each) for each in steps]) for name, read in readers.items()}
    return {name: exponent for name, exponent in found.items() if exponent is not None}


def _growth(parts: Sequence[float]) -> Exponent | None:
    total, curve = 0.0, {}
    for count, part in enumerate(parts, start=1):
        total += part
        if total > 0:
            curve[count] = math.log(total)
    depths = tuple(range(max(2, len(parts) // 4), len(parts) + 1))
    line = fit_log_line(curve, depths)
    if line is None:
        return None
    return Exponent(value=line[0], low=None, high=None, seeds=1, depths=depths)


def limits_of(
    point: DepthPoint, blocks: int, exponents: dict[str, Exponent], optimizer: str
) -> tuple[DepthLimit, ...]:
    """Depths in blocks of the same kind."""
    found = []
    power = exponents["loss_change"].value if "loss_change" in exponents else 0.0
    if point.parting and not point.parting_is_bound and power > 0:
        for cause, (level, words) in levels(optimizer).items():
            log_depth = math.log(blocks) + math.log(point.parting / level) / power
            if log_depth < math.log(FARTHEST):
                depth = math.exp(log_depth)
                found.append(
                    _extrapolated_limit(cause, depth, f"beyond about {depth:.3g} such blocks {words}")
                )
    changes: dict[Cause, float | None] = {
        "forward": point.forward_e_folds,
        "backward": point.backward_e_folds,
    }
    for cause, change in changes.items():
        if change is not None and abs(change) > 1.0:
            depth = blocks * MAX_EFOLDS_SGD / abs(change) if math.isfinite(change) else blocks
            what = "activations" if cause == "forward" else "gradients"
            words = f"blocks {what} would change by more than {MAX_EFOLDS_SGD:.0f} e-folds, if they go on as they do"
            found.append(_extrapolated_limit(cause, depth, f"beyond about {depth:.3g} {words}"))
    return tuple(sorted(found, key=lambda each: each.depth))


def _extrapolated_limit(cause: Cause, depth: float, message: str) -> DepthLimit:
    return DepthLimit(cause=cause, depth=depth, low=None, high=None, extrapolated=True, message=message)
