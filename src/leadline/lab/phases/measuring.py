"""A diagram measured: its columns through an executor, and what theory makes of them."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from leadline.errors import InputError
from leadline.lab.phases.columns import phase_job
from leadline.lab.phases.plan import Plan, cells_of, find_kind
from leadline.lab.phases.scales import reach_of
from leadline.lab.phases.separation import Judged, separate
from leadline.report.phases.record import TRAINED, Phase
from leadline.sweeps import Executor, Progress, Store, run_sweep
from leadline.sweeps.here import in_process

STANDARD = Plan()


def phase(
    kind: str,
    plan: Plan = STANDARD,
    *,
    store: Store | None = None,
    executor: Executor = in_process,
    progress: Progress | None = None,
) -> Phase:
    """The diagram of `gain`, `rate` or `residual` against depth: who learns the digits, and what theory says of it."""
    cells = cells_of(kind, plan)
    found = run_sweep(phase_job(), cells, store=store, executor=executor, progress=progress)
    if found.failures:
        raise InputError(
            expected="every column of the diagram",
            got=f"{len(found.failures)} without a result; the first: {found.failures[0].reason}",
            fix="start again: finished columns are kept if there is a store",
        )
    values = tuple(float(cell["value"]) for cell in cells)
    return assemble(kind, plan, values, [tuple(column) for column in found.results])


def assemble(name: str, plan: Plan, values: Sequence[float], columns: Sequence[Sequence[float]]) -> Phase:
    """`columns[value][depth]`: accuracies."""
    kind = find_kind(name)
    reach = tuple(reach_of(name, value, kind.activation, kind.bias) for value in values)
    judged = [_judged(name, plan.depths, column, each) for column, each in zip(columns, reach, strict=True)]
    if name == "rate":
        judged = _from_the_best_up(columns, judged)
    return Phase(
        kind=name,
        title=kind.title,
        axis=kind.axis,
        log=kind.log,
        values=tuple(values),
        depths=plan.depths,
        accuracy=tuple(zip(*columns, strict=True)),
        reach=reach,
        separation=separate(judged, kind.stated),
        power=None if name == "gain" else edge_power(plan.depths, values, columns),
        setting={
            "activation": kind.activation,
            "gain": kind.gain,
            "bias": kind.bias,
            "rates": plan.rates or kind.rates,
            "width": plan.width,
            "steps": plan.steps,
            "batch": plan.batch,
            "seeds": plan.seeds,
            "samples": plan.samples,
        },
    )


def edge_power(
    depths: Sequence[int], values: Sequence[float], columns: Sequence[Sequence[float]]
) -> float | None:
    """Slope of the upper edge, where both sides of it were measured: log(highest trained value) against log(depth).

    A depth at which the lowest value does better than every other has no edge here: what trains it well lies below the
    grid, or it is lost at every value for a reason of its own.
    """
    lowest = values.index(min(values))
    points = []
    for row, depth in enumerate(depths):
        reached = [column[row] for column in columns]
        trained = [value for value, share in zip(values, reached, strict=True) if share >= TRAINED]
        others = [share for at, share in enumerate(reached) if at != lowest]
        if trained and max(trained) < max(values) and reached[lowest] <= max(others):
            points.append((math.log(depth), math.log(max(trained))))
    if len(points) < 3:
        return None
    return statistics.linear_regression(*zip(*points, strict=True)).slope


def _judged(name: str, depths: Sequence[int], column: Sequence[float], reach: float) -> Judged:
    return [
        (depth / reach if reach > 0 else math.inf, accuracy >= TRAINED)
        for depth, accuracy in zip(depths, column, strict=True)
    ]


def _from_the_best_up(columns: Sequence[Sequence[float]], judged: Sequence[Judged]) -> list[Judged]:
    """Rates below the best one of a depth fail by being slow, of which this theory says nothing: left out."""
    best = [max(range(len(columns)), key=lambda at: columns[at][row]) for row in range(len(columns[0]))]
    return [[each for row, each in enumerate(column) if at >= best[row]] for at, column in enumerate(judged)]
