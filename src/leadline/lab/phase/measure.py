"""Measure a phase diagram and compare it with theory."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from itertools import pairwise

import torch

from leadline.errors import InputError
from leadline.lab.data import standardized_digits
from leadline.lab.fleet import Net, Task, train_fleet
from leadline.lab.phase.plan import Plan, column_cells, find_kind
from leadline.lab.phase.record import MIN_TRAINED_ACCURACY, Phase, Separation
from leadline.lab.sweeps import Bundle, CellStore, Executor, Job, Progress, run_sweep
from leadline.lab.sweeps.cells import Settings
from leadline.lab.sweeps.executors import in_process
from leadline.nn.activations import find_activation
from leadline.readings.theory import quadrature
from leadline.readings.theory.criticality import depth_scale

VERSION = "phase/1"  # of what a cell means: change it when the same settings would give another result
MAX_BUNDLE_COLUMNS = 2  # columns in one fleet: enough to fill its chunks, few enough to be stored often


def phase_job() -> Job:
    return Job(work=run_columns, version=VERSION, kin=_kin, most=MAX_BUNDLE_COLUMNS)


def run_columns(bundle: Bundle) -> list[list[float]]:
    """For each column, the accuracy at each depth: of the best rate, mean over seeds."""
    nets = [list(nets_of(cell)) for cell in bundle]
    found = train_fleet([net for column in nets for net in column], _task(bundle[0])).accuracy
    results = []
    for cell, part in zip(bundle, torch.split(found, [len(column) for column in nets]), strict=True):
        table = part.view(len(cell["depths"]), len(cell["rates"]), cell["seeds"])
        results.append(table.mean(2).amax(1).tolist())
    return results


def nets_of(cell: Settings) -> Iterator[Net]:
    """By depth, then rate, then seed."""
    kind, name, value = find_kind(cell["kind"]), cell["kind"], cell["value"]
    for depth in cell["depths"]:
        for rate in cell["rates"]:
            for seed in range(cell["seeds"]):
                yield Net(
                    depth=depth,
                    gain=value if name == "gain" else kind.gain,
                    bias=kind.bias,
                    rate=rate,
                    skip=1.0 if name == "residual" else 0.0,
                    scale=value if name == "residual" else 1.0,
                    activation=kind.activation,
                    seed=seed,
                )


def _task(cell: Settings) -> Task:
    inputs, targets = standardized_digits()
    samples = min(cell["samples"], len(inputs))
    generator = torch.Generator().manual_seed(0)
    return Task(
        inputs=inputs[:samples],
        targets=targets[:samples],
        batches=torch.randint(samples, (cell["steps"], cell["batch"]), generator=generator),
        width=cell["width"],
    )


def _kin(cell: Settings) -> str:
    """All columns that share the task: they differ in value, and with it perhaps in rate."""
    return str(sorted((name, value) for name, value in cell.items() if name not in ("value", "rates")))


# What theory says of a place in a diagram: its load, a number that grows with depth, 1 at theory's own scale.
#
# gain      $L/\xi$ with $\xi$ the depth over which two inputs forget each other (or part): Schoenholz et al. 2017
# rate      $\eta\,N$: the squared gradient of a plain network adds up over its $N$ layers, so a step of SGD does too
# residual  $N \ln(1 + s^2)$: each branch adds $s^2$ times what the stream has; for small $s$ that is $N s^2$, the law
#           $s \sim N^{-1/2}$

MAX_ITERATIONS = 4000  # of the correlation map; at a critical point it settles like one over their number
CONVERGENCE_TOLERANCE = 1e-12
START_CORRELATION = 0.5  # correlation the map starts from: any below 1 ends at the same point


def correlation_scale(activation: str, gain: float, bias: float) -> float:
    r"""$\xi_c = -1/\ln \chi_c$: over how many layers the correlation of two inputs comes e times closer to its end.

    The correlation moves as $c \mapsto (\sigma_w^2 E[\phi(u)\phi(v)] + \sigma_b^2)/q$ for $u, v$ Gaussian with variance
    $q$ and correlation $c$, to a fixed point $c^*$ with slope $\chi_c = \sigma_w^2 E[\phi'(u)\phi'(v)]$ there. In the
    ordered phase $c^* = 1$ and $\chi_c = \chi$, so it is the scale of the gradient too; in the chaotic phase it is not.
    Schoenholz, Gilmer, Ganguli and Sohl-Dickstein 2017, Deep information propagation, section 3.
    """
    q = depth_scale(activation, gain, bias).q
    if q is None or not 0 < q < math.inf:
        return 0.0
    z = (quadrature.nodes() * math.sqrt(q)).requires_grad_()
    with torch.enable_grad():
        y = find_activation(activation)(z)
        (slope,) = torch.autograd.grad(y.sum(), z)
    value, slope = y.detach(), slope.detach()
    ms, slope_ms = quadrature.moments(value)[1], quadrature.moments(slope)[1]
    c = START_CORRELATION
    for _ in range(MAX_ITERATIONS):
        new = min((gain * quadrature.kernel(value, ms, [c])[0] + bias) / q, 1.0)
        if abs(new - c) < CONVERGENCE_TOLERANCE:
            break
        c = new
    chi = gain * quadrature.kernel(slope, slope_ms, [c])[0]
    return math.inf if chi >= 1 else -1 / math.log(chi)


def theory_reach(kind: str, value: float, activation: str, bias: float) -> float:
    """The depth at which the load of a network with that value is 1."""
    if kind == "gain":
        return correlation_scale(activation, value, bias)
    return 1 / value if kind == "rate" else 1 / math.log1p(value**2)


# How well "shallower than so many times theory's reach" tells the networks that trained from those that did not.

LoadOutcomes = Sequence[tuple[float, bool]]
"""Load of a network, and whether it trained."""


def separate(columns: Sequence[LoadOutcomes], stated: float) -> Separation:
    """`columns` in the order of their values. None where all networks trained, or none did."""
    every = [each for column in columns for each in column]
    fitted_on = [each for column in columns[::2] for each in column]
    judged_on = [each for column in columns[1::2] for each in column]
    fitted = best_multiple(fitted_on)
    return Separation(
        stated=stated,
        at_stated=balanced_accuracy(every, stated),
        fitted=fitted,
        at_fitted=None if fitted is None else balanced_accuracy(judged_on, fitted),
        networks=len(every),
    )


def balanced_accuracy(judged: LoadOutcomes, multiple: float) -> float | None:
    """The mean of two shares: of those that trained, how many have a lower load; of the others, how many do not."""
    trained = [load < multiple for load, good in judged if good]
    failed = [load >= multiple for load, good in judged if not good]
    if not trained or not failed:
        return None
    return (sum(trained) / len(trained) + sum(failed) / len(failed)) / 2


def best_multiple(judged: LoadOutcomes) -> float | None:
    """The multiple with the highest balanced accuracy; in the middle, where several are equally good."""
    loads = sorted({load for load, _ in judged if 0 < load < math.inf})
    between = [math.sqrt(low * high) for low, high in pairwise(loads)]
    scored = [(score, each) for each in between if (score := balanced_accuracy(judged, each)) is not None]
    if not scored:
        return None
    best = max(score for score, _ in scored)
    equal = [each for score, each in scored if score == best]
    return equal[len(equal) // 2]


# A diagram measured: its columns through an executor, and what theory makes of them.

STANDARD = Plan()


def phase(
    kind: str,
    plan: Plan = STANDARD,
    *,
    store: CellStore | None = None,
    executor: Executor = in_process,
    progress: Progress | None = None,
) -> Phase:
    """The diagram of `gain`, `rate` or `residual` against depth: who learns the digits, and what theory says of it."""
    cells = column_cells(kind, plan)
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
    reach = tuple(theory_reach(name, value, kind.activation, kind.bias) for value in values)
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
        trained = [
            value for value, share in zip(values, reached, strict=True) if share >= MIN_TRAINED_ACCURACY
        ]
        others = [share for at, share in enumerate(reached) if at != lowest]
        if trained and max(trained) < max(values) and reached[lowest] <= max(others):
            points.append((math.log(depth), math.log(max(trained))))
    if len(points) < 3:
        return None
    return statistics.linear_regression(*zip(*points, strict=True)).slope


def _judged(name: str, depths: Sequence[int], column: Sequence[float], reach: float) -> LoadOutcomes:
    return [
        (depth / reach if reach > 0 else math.inf, accuracy >= MIN_TRAINED_ACCURACY)
        for depth, accuracy in zip(depths, column, strict=True)
    ]


def _from_the_best_up(
    columns: Sequence[Sequence[float]], judged: Sequence[LoadOutcomes]
) -> list[LoadOutcomes]:
    """Rates below the best one of a depth fail by being slow, of which this theory says nothing: left out."""
    best = [max(range(len(columns)), key=lambda at: columns[at][row]) for row in range(len(columns[0]))]
    return [[each for row, each in enumerate(column) if at >= best[row]] for at, column in enumerate(judged)]
