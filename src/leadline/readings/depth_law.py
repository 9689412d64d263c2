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

# Calibrated by benchmarks/update_exponents.py: below, corrections in 1/N shift a slope by more than 0.1.
MIN_LAW_DEPTH = 8
# Derived: with two depths every curve is a line, so that a bend does not show.
MIN_FIT_DEPTHS = 3
# Heuristic: an interval wider than from half to twice a depth decides nothing.
MAX_INTERVAL_RATIO = 4.0
# Derived: at the parting itself half of the predicted decrease is lost.
PARTING_MULTIPLE = 1.0
# Heuristic: e-folds that grow less than half as fast as depth follow a power law, which has no limiting depth.
MIN_GEOMETRIC_GROWTH = 0.5
# Heuristic: no network is this deep, and a law fitted on few blocks does not hold so far.
MAX_DEPTH_FORECAST = 1e9
# Heuristic: with fewer blocks their sums show the ends of the stack, not its law.
MIN_REPEATED_BLOCKS = 8
# Cited: two-sided 95 % quantiles of Student's t for 1, 2, ... degrees of freedom (standard table), and of the normal.
STUDENT_QUANTILES = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
STUDENT_QUANTILE_BELOW_30, NORMAL_QUANTILE = 2.228, 1.960

Curve = Mapping[int, float]
"""Natural logarithm of a quantity, by depth."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeanInterval:
    """A mean with its 95 % interval; None for the bounds of a single sample."""

    mean: float
    low: float | None
    high: float | None


def deeper_part(depths: Sequence[int]) -> tuple[int, ...]:
    """The depths on which a law is fitted: those of at least 8 blocks, or the deepest three."""
    deep = [depth for depth in depths if depth >= MIN_LAW_DEPTH]
    return tuple(deep if len(deep) >= MIN_FIT_DEPTHS else depths[-MIN_FIT_DEPTHS:])


def fit_exponent(curves: Sequence[Curve], depths: Sequence[int]) -> Exponent | None:
    """Slope of log quantity against log depth, with one curve per seed; None if no seed has two finite points."""
    used = deeper_part(depths)
    slopes = [line[0] for curve in curves if (line := fit_log_line(curve, used)) is not None]
    if not slopes:
        return None
    slope = mean_interval(slopes)
    return Exponent(value=slope.mean, low=slope.low, high=slope.high, seeds=len(slopes), depths=used)


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
    """Depth at which the fitted power law falls below `level` (a logarithm); None if it does not fall."""
    line = fit_log_line(curve, depths)
    if line is None or line[0] >= 0:
        return None
    power = (level - line[1]) / line[0]
    return math.exp(power) if power < math.log(MAX_DEPTH_FORECAST) else None


def linear_crossing(curve: Curve, depths: Sequence[int], level: float) -> float | None:
    """Depth at which a quantity that grows in proportion to depth, as e-folds do, reaches `level`."""
    points = [(depth, curve[depth]) for depth in depths if math.isfinite(curve.get(depth, math.nan))]
    if len(points) < 2:
        return None
    fitted = statistics.linear_regression(*zip(*points, strict=True))
    return (level - fitted.intercept) / fitted.slope if fitted.slope > 0 else None


def mean_interval(samples: Sequence[float]) -> MeanInterval:
    """Mean and its 95 % interval by Student's t; no interval for a single sample."""
    mean = statistics.fmean(samples)
    if len(samples) < 2:
        return MeanInterval(mean=mean, low=None, high=None)
    half = student_quantile(len(samples) - 1) * statistics.stdev(samples) / math.sqrt(len(samples))
    return MeanInterval(mean=mean, low=mean - half, high=mean + half)


def student_quantile(degrees: int) -> float:
    """Two-sided 95 % quantile of Student's t with this many degrees of freedom."""
    if degrees <= len(STUDENT_QUANTILES):
        return STUDENT_QUANTILES[degrees - 1]
    return STUDENT_QUANTILE_BELOW_30 if degrees < 30 else NORMAL_QUANTILE


# How deep a family goes: where its first step leaves the linear regime, and where its signal is lost.
#
# The step: the parting $c(N)$ is the multiple of the user's step at which measured and predicted change of the loss
# differ by half. It falls like a power of depth. Beyond the depth at which it is `PARTING_MULTIPLE` the first step does
# not achieve its predicted decrease (a warm-up is needed). Beyond the depth at which it is 1 / `HALF_FAIL_RATE_RATIO`
# about half of all trainings at that rate failed. The signal: e-folds of a geometric law grow in proportion to depth,
# up to `MAX_EFOLDS_SGD`.


def find_depth_limits(
    points: Sequence[DepthPoint], depths: Sequence[int], optimizer: str
) -> tuple[DepthLimit, ...]:
    """Every limit that the points show, the smallest depth first."""
    limits = [
        *_step_limits(points, depths, optimizer),
        *_signal_limits(points, depths),
        *_non_finite_limits(points),
    ]
    return tuple(sorted(limits, key=lambda each: each.depth))


def by_seed(points: Sequence[DepthPoint], read: Callable[[DepthPoint], float | None]) -> list[Curve]:
    """A quantity by depth where it was measured, one curve per seed."""
    seeds = sorted({point.seed for point in points})
    return [
        {p.depth: value for p in points if p.seed == seed and (value := read(p)) is not None}
        for seed in seeds
    ]


def log_parting(point: DepthPoint) -> float | None:
    """Logarithm of the parting; None if it was not reached."""
    if point.parting is None or point.parting_is_bound:
        return None
    return math.log(point.parting) if point.parting > 0 else -math.inf


def step_levels(optimizer: str) -> Mapping[Cause, tuple[float, str]]:
    """For each limit of the step, the multiple at which it lies and the advice there.

    An optimizer of unknown family is judged like SGD, which tolerates less.
    """
    failing = HALF_FAIL_RATE_RATIO[family_of(optimizer) or "sgd"]
    return {
        "promise": (
            PARTING_MULTIPLE,
            "the first step achieves less than half of its predicted decrease: use a warm-up",
        ),
        "step": (
            1 / failing,
            f"the rate is more than {failing:.0f} times the safe rate and training is likely to fail: lower it",
        ),
    }


def _step_limits(points: Sequence[DepthPoint], depths: Sequence[int], optimizer: str) -> list[DepthLimit]:
    curves, used = by_seed(points, log_parting), deeper_part(depths)
    limits = []
    for cause, (level, consequence) in step_levels(optimizer).items():
        crossings = [at for curve in curves if (at := crossing(curve, used, math.log(level))) is not None]
        if len(crossings) * 2 > len(curves):
            limits.append(_limit(cause, crossings, depths, consequence))
    return limits


def _signal_limits(points: Sequence[DepthPoint], depths: Sequence[int]) -> list[DepthLimit]:
    readers: Mapping[Cause, Callable[[DepthPoint], float | None]] = {
        "forward": lambda point: point.forward_e_folds,
        "backward": lambda point: point.backward_e_folds,
    }
    limits = []
    for cause, read in readers.items():
        curves = by_seed(points, lambda point, read=read: _magnitude(read(point)))  # type: ignore[misc]
        grows = any((value := read(point)) is not None and value > 0 for point in points)
        reach = MAX_EFOLDS_ADAM if grows and all(point.normalized for point in points) else MAX_EFOLDS_SGD
        curves = [curve for curve in curves if _is_geometric(curve)]
        crossings = [at for curve in curves if (at := linear_crossing(curve, depths, reach)) is not None]
        if len(crossings) * 2 > len({point.seed for point in points}):
            what = "activations" if cause == "forward" else "gradients"
            consequence = f"{what} change by more than {reach:.0f} e-folds over the depth"
            limits.append(_limit(cause, crossings, depths, consequence))
    return limits


def _magnitude(change: float | None) -> float | None:
    return None if change is None else abs(change)


def _is_geometric(curve: Curve) -> bool:
    """Whether e-folds grow in proportion to depth, or at least half as fast."""
    known = {depth: value for depth, value in curve.items() if math.isfinite(value)}
    if len(known) < 2:
        return False
    first, last = min(known), max(known)
    growth = known[last] / known[first] if known[first] > 0 else math.inf
    return growth > MIN_GEOMETRIC_GROWTH * last / first and known[last] > 1.0


def _non_finite_limits(points: Sequence[DepthPoint]) -> list[DepthLimit]:
    broken = [
        point.depth
        for point in points
        if not math.isfinite(point.loss) or not math.isfinite(point.grad_square)
    ]
    if not broken:
        return []
    message = f"from depth {min(broken)} on the loss or a gradient is not finite"
    return [
        DepthLimit(
            cause="non-finite", depth=min(broken), low=None, high=None, extrapolated=False, message=message
        )
    ]


def _limit(cause: Cause, crossings: Sequence[float], depths: Sequence[int], consequence: str) -> DepthLimit:
    """The limit averaged over seeds on a logarithmic scale, on which the fit is a line."""
    log_depth = mean_interval([math.log(max(each, 1e-3)) for each in crossings])
    depth = math.exp(log_depth.mean)
    low = None if log_depth.low is None else math.exp(log_depth.low)
    high = None if log_depth.high is None else _exp(log_depth.high)
    limit = DepthLimit(
        cause=cause,
        depth=depth,
        low=low,
        high=high,
        extrapolated=not depths[0] <= depth <= depths[-1],
        message=f"beyond depth {depth:.3g} {consequence}",
    )
    if is_wide(limit):
        return replace(limit, message=f"undecided, use more seeds or depths: {consequence}")
    return limit


def is_wide(limit: DepthLimit) -> bool:
    """Whether the seeds disagree so much that the depth is undecided."""
    return limit.low is not None and limit.high is not None and limit.high > MAX_INTERVAL_RATIO * limit.low


def _exp(power: float) -> float:
    return math.exp(power) if power < 700 else math.inf


# A forecast from the blocks of a single model, for more blocks of the same kind without rescaling.
#
# Seen from the loss, the last $n$ blocks of a stack behave like a stack of $n$ blocks. So sums over the last $n$
# blocks, for growing $n$, show the power of depth in the predicted change of the loss. Where the step leaves the linear
# regime is carried over as $c(N') = c(N)\,(N'/N)^{-p}$, with that power $p$: both slope and curvature along the step
# are sums over blocks, the second over pairs of them.


def repeated_steps(profile: Profile, update: Update) -> list[BlockStep]:
    """The steps of the repeated blocks, from the last to the first."""
    steps = [each for each in update.blocks if each.repeated]
    if len(steps) < MIN_REPEATED_BLOCKS:
        raise InputError(
            expected=f"a model of at least {MIN_REPEATED_BLOCKS} repeated blocks, or a function build(depth)",
            got=f"{profile.model} with {len(steps)} such blocks",
            fix="write def build(depth): ... that returns the Case at that depth, and call leadline.forecast(build)",
        )
    return steps[::-1]


def exponents_of(steps: Sequence[BlockStep]) -> dict[str, Exponent]:
    """Exponents in the number of blocks, of the squared gradient and of the predicted change of the loss."""
    readers: dict[str, Callable[[BlockStep], float]] = {
        "grad_square": lambda each: each.grad_square,
        "loss_change": lambda each: -each.predicted,
    }
    exponents = {name: _growth([read(each) for each in steps]) for name, read in readers.items()}
    return {name: exponent for name, exponent in exponents.items() if exponent is not None}


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
    """Limits of a deeper stack, as a number of blocks of the same kind."""
    limits = []
    power = exponents["loss_change"].value if "loss_change" in exponents else 0.0
    if point.parting and not point.parting_is_bound and power > 0:
        for cause, (level, consequence) in step_levels(optimizer).items():
            log_depth = math.log(blocks) + math.log(point.parting / level) / power
            if log_depth < math.log(MAX_DEPTH_FORECAST):
                depth = math.exp(log_depth)
                limits.append(
                    _extrapolated_limit(cause, depth, f"beyond about {depth:.3g} such blocks {consequence}")
                )
    changes: dict[Cause, float | None] = {
        "forward": point.forward_e_folds,
        "backward": point.backward_e_folds,
    }
    for cause, change in changes.items():
        if change is not None and abs(change) > 1.0:
            depth = blocks * MAX_EFOLDS_SGD / abs(change) if math.isfinite(change) else blocks
            what = "activations" if cause == "forward" else "gradients"
            consequence = (
                f"such blocks {what} would change by more than {MAX_EFOLDS_SGD:.0f} e-folds over the depth"
            )
            limits.append(_extrapolated_limit(cause, depth, f"beyond about {depth:.3g} {consequence}"))
    return tuple(sorted(limits, key=lambda each: each.depth))


def _extrapolated_limit(cause: Cause, depth: float, message: str) -> DepthLimit:
    return DepthLimit(cause=cause, depth=depth, low=None, high=None, extrapolated=True, message=message)
