"""Several runs of one measurement as an estimate with an interval, beside its prediction."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from leadline.readings.depth_law import fit_log_line, mean_interval
from leadline.records import Plot, PlotLine, PredictionCheck
from leadline.records.experiment import Party

RESAMPLES = 1000  # of the bootstrap: the ends of a 95 % interval then rest on 25 resamples each
LEVEL = 0.95
BOOTSTRAP_SEED = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A measured value with its interval; `how` says what kind of interval it is."""

    value: float
    low: float
    high: float
    runs: int
    how: str


def mean(samples: Sequence[float]) -> Estimate:
    """Mean with the 95 % interval of Student's t; what is not finite has no mean, and shows in the interval."""
    if not all(map(math.isfinite, samples)):
        return full_range(samples)
    found = mean_interval(samples)
    low, high = (
        (found.mean, found.mean) if found.low is None or found.high is None else (found.low, found.high)
    )
    return Estimate(value=found.mean, low=low, high=high, runs=len(samples), how="95 %, Student's t")


def geometric(samples: Sequence[float]) -> Estimate:
    """Geometric mean, for factors: Student's interval of the logarithms."""
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
    """Median with a 95 % bootstrap interval."""
    draw = random.Random(BOOTSTRAP_SEED)
    medians = sorted(statistics.median(draw.choices(samples, k=len(samples))) for _ in range(RESAMPLES))
    cut = round(RESAMPLES * (1 - LEVEL) / 2)
    return Estimate(
        value=statistics.median(samples),
        low=medians[cut],
        high=medians[-1 - cut],
        runs=len(samples),
        how="95 %, bootstrap of the median",
    )


def full_range(samples: Sequence[float]) -> Estimate:
    """Median, and the smallest and the largest of all runs: for what must be so in every one of them."""
    worst = [each for each in samples if math.isnan(each)]
    low, high = (math.nan, math.nan) if worst else (min(samples), max(samples))
    return Estimate(
        value=statistics.median(samples), low=low, high=high, runs=len(samples), how="smallest and largest"
    )


def slope(curves: Sequence[Mapping[int, float]]) -> Estimate:
    r"""Exponent $p$ of $y \propto N^p$: a least-squares line in log-log for each run, then Student's interval."""
    lines = [fit_log_line({depth: _log(y) for depth, y in curve.items()}, tuple(curve)) for curve in curves]
    return mean([line[0] if line is not None else math.nan for line in lines])


def median_curve(curves: Sequence[Mapping[int, float]]) -> dict[int, float]:
    """At each depth the median over the runs: what a figure shows."""
    return {depth: statistics.median(curve[depth] for curve in curves) for depth in curves[0]}


def _log(y: float) -> float:
    return math.log(y) if y > 0 else math.nan


# Predictions beside estimates: each becomes a Check, which judges itself.

EXACT = 1e-12  # relative, in double precision over a few hundred ops (derived: 1e-16 an op, and room)


def equals(
    what: str, found: Estimate, predicted: float, *, within: float, origin: str, by: Party = "article"
) -> PredictionCheck:
    """`found` is `predicted`, give or take the relative tolerance `within` (absolute, if `predicted` is 0)."""
    room = within * abs(predicted) if predicted else within
    return _check(what, found, by, origin, predicted, predicted - room, predicted + room)


def near(
    what: str, found: Estimate, predicted: float, *, room: float, origin: str, by: Party = "article"
) -> PredictionCheck:
    """`found` is `predicted`, give or take `room`: for exponents and cosines."""
    return _check(what, found, by, origin, predicted, predicted - room, predicted + room)


def below(what: str, found: Estimate, limit: float, *, origin: str, by: Party = "article") -> PredictionCheck:
    return _check(what, found, by, origin, None, None, limit)


def above(what: str, found: Estimate, limit: float, *, origin: str, by: Party = "article") -> PredictionCheck:
    return _check(what, found, by, origin, None, limit, None)


def exact(what: str, found: Estimate, *, by: Party = "article", limit: float = EXACT) -> PredictionCheck:
    """An identity: the relative error of every run is rounding."""
    return below(what, found, limit, origin="an identity; what is allowed is rounding", by=by)


def _check(  # noqa: PLR0913  (the fields of a prediction)
    what: str,
    found: Estimate,
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
        measured=found.value,
        measured_low=found.low,
        measured_high=found.high,
        runs=found.runs,
        interval=found.how,
    )


# Figures of experiments: lines of numbers over depths or other places.

Curve = Mapping[int, float] | Mapping[float, float]


def plot(
    title: str,
    across: str,
    measured: Mapping[str, Curve],
    theory: Mapping[str, Curve] | None = None,
    *,
    log: bool = True,
) -> Plot:
    """Curves by their labels, over all places that any of them has."""
    curves = [(label, curve, False) for label, curve in measured.items()]
    curves += [(label, curve, True) for label, curve in (theory or {}).items()]
    places = sorted({place for _, curve, _ in curves for place in curve})
    lines = [
        PlotLine(label=label, values=_values(curve, places), theory=predicted)
        for label, curve, predicted in curves
    ]
    return Plot(
        title=title, across=across, names=tuple(f"{place:g}" for place in places), lines=tuple(lines), log=log
    )


def _values(curve: Curve, places: Sequence[float]) -> tuple[float | None, ...]:
    known = {float(place): value for place, value in curve.items()}
    return tuple(known.get(float(place)) for place in places)
