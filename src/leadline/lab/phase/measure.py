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
from leadline.lab.phase.plan import PhasePlan, column_cells, find_kind
from leadline.lab.phase.record import MIN_TRAINED_ACCURACY, Phase, Separation
from leadline.lab.sweeps import Bundle, CellStore, Executor, Job, Progress, run_sweep
from leadline.lab.sweeps.cells import Settings
from leadline.lab.sweeps.executors import in_process
from leadline.nn.activations import find_activation
from leadline.readings.theory import quadrature
from leadline.readings.theory.criticality import depth_scale

# The meaning of a cell. Change it when the same settings would give a different result.
VERSION = "phase/1"
# Heuristic: enough columns to fill the chunks of a fleet, and few enough that results are saved often.
MAX_BUNDLE_COLUMNS = 2


def phase_job() -> Job:
    return Job(work=run_columns, version=VERSION, bundle_key=_bundle_key, max_bundle=MAX_BUNDLE_COLUMNS)


def run_columns(bundle: Bundle) -> list[list[float]]:
    """Return for each column the accuracy at each depth: the mean over seeds, at the best rate."""
    nets = [list(nets_of(cell)) for cell in bundle]
    accuracy = train_fleet([net for column in nets for net in column], _task(bundle[0])).accuracy
    results = []
    for cell, part in zip(bundle, torch.split(accuracy, [len(column) for column in nets]), strict=True):
        table = part.view(len(cell["depths"]), len(cell["rates"]), cell["seeds"])
        results.append(table.mean(2).amax(1).tolist())
    return results


def nets_of(cell: Settings) -> Iterator[Net]:
    """Yield the networks of a column, ordered by depth, then rate, then seed."""
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


def _bundle_key(cell: Settings) -> str:
    """Return the same key for all columns that share the task and differ only in value or rate."""
    return str(sorted((name, value) for name, value in cell.items() if name not in ("value", "rates")))


# Theory gives each position of a diagram a load, which grows with depth and is 1 at theory's own scale.
#
# gain      $L/\xi$, $\xi$ the depth scale over which two inputs converge (or diverge): Schoenholz et al. 2017
# rate      $\eta\,N$: the squared gradient of a plain network is a sum over its $N$ layers, and so is a step of SGD
# residual  $N \ln(1 + s^2)$: each branch adds $s^2$ times the second moment of the stream; for small $s$ this is
#           $N s^2$, the law $s \sim N^{-1/2}$

# Heuristic: at a critical point the correlation map converges only as one over the number of iterations.
MAX_ITERATIONS = 4000
# Heuristic: well below the accuracy that the depth scale is needed to.
CONVERGENCE_TOLERANCE = 1e-12
# Derived: any correlation below 1 leads to the same fixed point.
START_CORRELATION = 0.5


def correlation_scale(activation: str, gain: float, bias: float) -> float:
    r"""Return $\xi_c = -1/\ln \chi_c$: the layers in which the correlation of two inputs gets e times nearer its limit.

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
    """Return the depth at which the load of a network with this value is 1."""
    if kind == "gain":
        return correlation_scale(activation, value, bias)
    return 1 / value if kind == "rate" else 1 / math.log1p(value**2)


# How well the rule "shallower than a multiple of theory's reach" separates the networks that trained from the others.

LoadOutcomes = Sequence[tuple[float, bool]]
"""For each network its load and whether it trained."""


def separate(columns: Sequence[LoadOutcomes], stated: float) -> Separation:
    """Score theory's line. `columns` are ordered by value. Scores are None if all networks trained or none did."""
    all_outcomes = [each for column in columns for each in column]
    fitted_on = [each for column in columns[::2] for each in column]
    tested_on = [each for column in columns[1::2] for each in column]
    fitted = best_multiple(fitted_on)
    return Separation(
        stated=stated,
        at_stated=balanced_accuracy(all_outcomes, stated),
        fitted=fitted,
        at_fitted=None if fitted is None else balanced_accuracy(tested_on, fitted),
        networks=len(all_outcomes),
    )


def balanced_accuracy(outcomes: LoadOutcomes, multiple: float) -> float | None:
    """Return the mean of two shares: trained networks with a load below `multiple`, and other networks above it."""
    trained = [load < multiple for load, good in outcomes if good]
    failed = [load >= multiple for load, good in outcomes if not good]
    if not trained or not failed:
        return None
    return (sum(trained) / len(trained) + sum(failed) / len(failed)) / 2


def best_multiple(outcomes: LoadOutcomes) -> float | None:
    """Return the multiple with the highest balanced accuracy, the middle one if several are equally good."""
    loads = sorted({load for load, _ in outcomes if 0 < load < math.inf})
    between = [math.sqrt(low * high) for low, high in pairwise(loads)]
    scored = [(score, each) for each in between if (score := balanced_accuracy(outcomes, each)) is not None]
    if not scored:
        return None
    best = max(score for score, _ in scored)
    equal = [each for score, each in scored if score == best]
    return equal[len(equal) // 2]


# Measuring a diagram: run its columns with an executor and add what theory predicts.

DEFAULT_PLAN = PhasePlan()


def phase(
    kind: str,
    plan: PhasePlan = DEFAULT_PLAN,
    *,
    store: CellStore | None = None,
    executor: Executor = in_process,
    progress: Progress | None = None,
) -> Phase:
    """Measure the diagram of `gain`, `rate` or `residual` against depth: which networks learn the digits."""
    cells = column_cells(kind, plan)
    sweep = run_sweep(phase_job(), cells, store=store, executor=executor, progress=progress)
    if sweep.failures:
        raise InputError(
            expected="a result for every column of the diagram",
            got=f"{len(sweep.failures)} columns without a result; the first: {sweep.failures[0].reason}",
            fix="run it again; with a store, finished columns are not computed again",
        )
    values = tuple(float(cell["value"]) for cell in cells)
    return assemble(kind, plan, values, [tuple(column) for column in sweep.results])


def assemble(
    name: str, plan: PhasePlan, values: Sequence[float], columns: Sequence[Sequence[float]]
) -> Phase:
    """Build the record from the accuracies `columns[value][depth]`."""
    kind = find_kind(name)
    reach = tuple(theory_reach(name, value, kind.activation, kind.bias) for value in values)
    outcomes = [
        _outcomes(name, plan.depths, column, each) for column, each in zip(columns, reach, strict=True)
    ]
    if name == "rate":
        outcomes = _at_or_above_best_rate(columns, outcomes)
    return Phase(
        kind=name,
        title=kind.title,
        axis=kind.axis,
        log=kind.log,
        values=tuple(values),
        depths=plan.depths,
        accuracy=tuple(zip(*columns, strict=True)),
        reach=reach,
        separation=separate(outcomes, kind.stated),
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
    """Return the slope of log(highest trained value) against log(depth), where both sides of the edge were measured.

    Depths at which the lowest value does better than every other are left out: the best value lies below the grid, or
    the network fails at every value for another reason.
    """
    lowest = values.index(min(values))
    points = []
    for row, depth in enumerate(depths):
        accuracies = [column[row] for column in columns]
        trained = [
            value for value, share in zip(values, accuracies, strict=True) if share >= MIN_TRAINED_ACCURACY
        ]
        others = [share for at, share in enumerate(accuracies) if at != lowest]
        if trained and max(trained) < max(values) and accuracies[lowest] <= max(others):
            points.append((math.log(depth), math.log(max(trained))))
    if len(points) < 3:
        return None
    return statistics.linear_regression(*zip(*points, strict=True)).slope


def _outcomes(name: str, depths: Sequence[int], column: Sequence[float], reach: float) -> LoadOutcomes:
    return [
        (depth / reach if reach > 0 else math.inf, accuracy >= MIN_TRAINED_ACCURACY)
        for depth, accuracy in zip(depths, column, strict=True)
    ]


def _at_or_above_best_rate(
    columns: Sequence[Sequence[float]], outcomes: Sequence[LoadOutcomes]
) -> list[LoadOutcomes]:
    """Leave out rates below the best one of a depth: they fail by being slow, which this theory does not cover."""
    best = [max(range(len(columns)), key=lambda at: columns[at][row]) for row in range(len(columns[0]))]
    return [
        [each for row, each in enumerate(column) if at >= best[row]] for at, column in enumerate(outcomes)
    ]
