"""Estimates with intervals from several runs, checks of predictions against them, and the plots of experiments."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from leadline.readings.depth_law import fit_log_line, mean_interval
from leadline.records import Plot, PlotLine, PredictionCheck
from leadline.records.experiment import Party

# Derived: each end of a 95 % bootstrap interval then rests on 25 resamples.
RESAMPLES = 1000
CONFIDENCE_LEVEL = 0.95
BOOTSTRAP_SEED = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A measured value with its interval; `how` names the kind of interval."""

    value: float
    low: float
    high: float
    runs: int
    how: str


def mean(samples: Sequence[float]) -> Estimate:
    """Return the mean with the 95 % interval of Student's t, or `full_range` if a sample is not finite."""
    if not all(map(math.isfinite, samples)):
        return full_range(samples)
    student = mean_interval(samples)
    low, high = student.low, student.high
    if low is None or high is None:
        low = high = student.mean
    return Estimate(value=student.mean, low=low, high=high, runs=len(samples), how="95 %, Student's t")


def geometric(samples: Sequence[float]) -> Estimate:
    """Return the geometric mean of factors, with Student's interval of the logarithms."""
    if not all(each > 0 for each in samples):
        return full_range(samples)
    logs = mean([math.log(each) for each in samples])
    return Estimate(
        value=math.exp(logs.value),
        low=math.exp(logs.low),
        high=math.exp(logs.high),
        runs=logs.runs,
        how="95 %, Student's t of the logarithm",
    )


def median(samples: Sequence[float]) -> Estimate:
    """Return the median with a 95 % bootstrap interval."""
    draw = random.Random(BOOTSTRAP_SEED)
    medians = sorted(statistics.median(draw.choices(samples, k=len(samples))) for _ in range(RESAMPLES))
    cut = round(RESAMPLES * (1 - CONFIDENCE_LEVEL) / 2)
    return Estimate(
        value=statistics.median(samples),
        low=medians[cut],
        high=medians[-1 - cut],
        runs=len(samples),
        how="95 %, bootstrap of the median",
    )


def full_range(samples: Sequence[float]) -> Estimate:
    """Return the median with the smallest and the largest run, for statements that must hold in every run."""
    has_nan = any(map(math.isnan, samples))
    low, high = (math.nan, math.nan) if has_nan else (min(samples), max(samples))
    return Estimate(
        value=statistics.median(samples), low=low, high=high, runs=len(samples), how="smallest and largest"
    )


def slope(curves: Sequence[Mapping[int, float]]) -> Estimate:
    r"""Return the exponent $p$ of $y \propto N^p$: a least-squares line in log-log per run, with Student's interval."""
    lines = [fit_log_line({depth: _log(y) for depth, y in curve.items()}, tuple(curve)) for curve in curves]
    return mean([line[0] if line is not None else math.nan for line in lines])


def median_curve(curves: Sequence[Mapping[int, float]]) -> dict[int, float]:
    """Return the median over the runs at each depth, for a plot."""
    return {depth: statistics.median(curve[depth] for curve in curves) for depth in curves[0]}


def _log(y: float) -> float:
    return math.log(y) if y > 0 else math.nan


# Predictions compared with estimates. A PredictionCheck decides by itself whether they agree.

# Derived: relative rounding error in double precision, 1e-16 per op over a few hundred ops, with a margin.
MAX_ROUNDING_ERROR = 1e-12


def equals(
    what: str, estimate: Estimate, predicted: float, *, within: float, origin: str, by: Party = "article"
) -> PredictionCheck:
    """Check that `estimate` equals `predicted` within the relative tolerance `within`, absolute if `predicted` is 0."""
    room = within * abs(predicted) if predicted else within
    return _check(what, estimate, by, origin, predicted, predicted - room, predicted + room)


def near(
    what: str, estimate: Estimate, predicted: float, *, room: float, origin: str, by: Party = "article"
) -> PredictionCheck:
    """Check that `estimate` equals `predicted` within the absolute tolerance `room`, for exponents and cosines."""
    return _check(what, estimate, by, origin, predicted, predicted - room, predicted + room)


def below(
    what: str, estimate: Estimate, limit: float, *, origin: str, by: Party = "article"
) -> PredictionCheck:
    return _check(what, estimate, by, origin, None, None, limit)


def above(
    what: str, estimate: Estimate, limit: float, *, origin: str, by: Party = "article"
) -> PredictionCheck:
    return _check(what, estimate, by, origin, None, limit, None)


def exact(
    what: str, estimate: Estimate, *, by: Party = "article", limit: float = MAX_ROUNDING_ERROR
) -> PredictionCheck:
    """Check an identity: the relative error of every run is a rounding error."""
    return below(what, estimate, limit, origin="an identity; only rounding errors are allowed", by=by)


def _check(  # noqa: PLR0913  (the fields of a prediction)
    what: str,
    estimate: Estimate,
    by: Party,
    origin: str,
    predicted: float | None,
    low: float | None,
    high: float | None,
) -> PredictionCheck:
    return PredictionCheck(
        what=what,
        by=by,
        predicted=predicted,
        low=low,
        high=high,
        origin=origin,
        measured=estimate.value,
        measured_low=estimate.low,
        measured_high=estimate.high,
        runs=estimate.runs,
        interval=estimate.how,
    )


# Plots of experiments: curves over depth or another quantity.

PlotCurve = Mapping[int, float] | Mapping[float, float]


def plot(
    title: str,
    across: str,
    measured: Mapping[str, PlotCurve],
    theory: Mapping[str, PlotCurve] | None = None,
    *,
    log: bool = True,
) -> Plot:
    """Return a plot of the labeled curves over all positions that occur in any of them."""
    curves = [(label, curve, False) for label, curve in measured.items()]
    curves += [(label, curve, True) for label, curve in (theory or {}).items()]
    positions = sorted({position for _, curve, _ in curves for position in curve})
    lines = [
        PlotLine(label=label, values=_values(curve, positions), theory=predicted)
        for label, curve, predicted in curves
    ]
    return Plot(
        title=title,
        across=across,
        names=tuple(f"{position:g}" for position in positions),
        lines=tuple(lines),
        log=log,
    )


def _values(curve: PlotCurve, positions: Sequence[float]) -> tuple[float | None, ...]:
    known = {float(position): value for position, value in curve.items()}
    return tuple(known.get(float(position)) for position in positions)
