"""Measures the cost of a trace relative to a plain forward and backward pass on the same batch.

    python -m benchmarks.trace            measure cases without a result, fill docs/lab-notes/performance.md
    python -m benchmarks.trace --quick    small models, few rounds; prints, stores nothing

Time: the plain pass (`torch.autograd.grad` of the loss over all parameters) and the traced pass alternate in one
process; the figure is the median of their round-by-round ratios. Memory: see benchmarks/memory.py. A case that has a
result in benchmarks/results/trace.json is not measured again; delete the file, or the case, to redo it.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any
from unittest.mock import patch

import torch

import leadline
from benchmarks import workloads
from benchmarks.memory import peak_megabytes
from benchmarks.result_files import ROOT, Results, fill_file, run_missing, table
from benchmarks.timing import Spread, alternate, ratio, rounded, significant, spread
from leadline import Case
from leadline.tracer import stats_kernel

ROUNDS = 15
# Heuristic: seconds for the rounds of one case; at least a third of the rounds are run.
MAX_SECONDS_PER_CASE = 40.0
THREADS = (1, 2)
DEPTHS = (10, 100, 500, 2000)  # sequential layers; each a Linear and a ReLU
PROCESSES = 3  # for each memory figure

GOALS = {  # ratio of time: goal, and what it must not exceed; from the project's requirements
    "Transformer": (1.6, 2.5),
    "GPT-2": (1.6, 2.5),
    "MLP": (3.0, 5.0),
    "residual conv net": (1.5, None),
}
MEMORY_GOAL = 0.10


def plain(case: Case) -> None:
    """Do one plain forward and backward pass."""
    output = case.model(**case.inputs) if isinstance(case.inputs, dict) else case.model(case.inputs)
    loss = output.loss if case.loss is None else case.loss(output, case.targets)
    torch.autograd.grad(loss, list(case.model.parameters()))


def traced(case: Case) -> leadline.Trace:
    return leadline.trace(case.model, case.inputs, case.targets, case.loss, theory=False)


def traced_by_torch(case: Case) -> leadline.Trace:
    """Trace without the compiled kernel."""
    with patch.object(stats_kernel, "_LIBRARY", None):
        return traced(case)


def traced_with_theory(case: Case) -> leadline.Trace:
    return leadline.trace(case.model, case.inputs, case.targets, case.loss)


def checked(case: Case) -> leadline.Report:
    return leadline.check(case, rehearse=False)


WAYS: dict[str, Callable[[Case], Any]] = {"plain": plain, "traced": traced}
COSTS: dict[str, tuple[float, Callable[[], Case], Callable[[Case], Any], Callable[[Case], Any]]] = {
    "trace / plain pass, Transformer": (1.8, workloads.narrow_transformer, traced, plain),
    "trace / plain pass, MLP": (3.0, workloads.mlp, traced, plain),
    "trace without the kernel / plain pass, Transformer": (
        1.8, workloads.narrow_transformer, traced_by_torch, plain,
    ),
    "trace without the kernel / plain pass, MLP": (3.0, workloads.mlp, traced_by_torch, plain),
    "trace with theory / plain pass, Transformer": (
        2.5, workloads.narrow_transformer, traced_with_theory, plain,
    ),
    "check without rehearsal / plain step, Transformer": (
        12, lambda: workloads.with_adamw(workloads.narrow_transformer()), checked, workloads.step,
    ),
    "check without rehearsal / plain step, small MLP": (
        25, lambda: workloads.with_adamw(workloads.mlp(layers=4, width=64, batch=32)), checked, workloads.step,
    ),
}  # fmt: skip
"""The goal, the case, and two ways whose times are compared; goals are the project's requirements."""
MEMORY_WAYS: dict[str, tuple[float, Callable[[Case], Any]]] = {
    "check without rehearsal, AdamW: memory / parameters": (3, checked),
    "check, AdamW: memory / parameters": (3, leadline.check),
    "fix, AdamW: memory / parameters": (4, leadline.fix),
}
"""The goal, and what runs; memory beyond the weights and the optimizer's state."""


def measure_time(build: Callable[[], Case], threads: int, rounds: int = ROUNDS) -> dict[str, Any]:
    seconds = both_ways(build(), threads, rounds)
    return {
        "ratio": rounded(ratio(seconds["traced"], seconds["plain"])),
        "rounds": len(seconds["plain"]),
        "plain_ms": significant(1e3 * statistics.median(seconds["plain"]), 3),
        "traced_ms": significant(1e3 * statistics.median(seconds["traced"]), 3),
    }


def measure_depth(layers: int, rounds: int = ROUNDS) -> dict[str, Any]:
    """Return the extra microseconds per op, (traced - plain) / ops, on layers with hardly any arithmetic."""
    case = workloads.mlp(layers=layers, width=32, batch=8)
    ops = len(traced(case).ops)
    seconds = both_ways(case, 1, rounds)
    extra = [1e6 * (a - b) / ops for a, b in zip(seconds["traced"], seconds["plain"], strict=True)]
    return {"ops": ops, "extra_us_per_op": rounded(spread(extra), 3)}


def both_ways(case: Case, threads: int, rounds: int) -> dict[str, list[float]]:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        ways = {name: partial(way, case) for name, way in WAYS.items()}
        clock = time.process_time if threads == 1 else time.perf_counter
        return alternate(ways, rounds=rounds, warmups=1, patience=MAX_SECONDS_PER_CASE, clock=clock)
    finally:
        torch.set_num_threads(before)


def measure_cost(build: Callable[[], Case], over: Callable[[Case], Any], under: Callable[[Case], Any]) -> Any:
    """Return the ratio of processor times with one thread."""
    torch.set_num_threads(1)
    case = build()
    ways = {"over": partial(over, case), "under": partial(under, case)}
    seconds = alternate(
        ways, rounds=ROUNDS, warmups=1, patience=MAX_SECONDS_PER_CASE, clock=time.process_time
    )
    return rounded(ratio(seconds["over"], seconds["under"]))


def measure_parameter_multiples(way: str) -> Any:
    """Return the peak of memory in multiples of that of the parameters, from one process: a fix takes minutes."""
    parameters = sum(each.numel() * each.element_size() for each in workloads.wide_mlp().model.parameters())
    multiple = peak_megabytes("wide_mlp", way, 1) * 2**20 / parameters
    return rounded(Spread(low=multiple, median=multiple, high=multiple), 3)


def measure_memory(workload: str) -> dict[str, Any]:
    """Measure plain and traced processes alternately with one thread."""
    peaks = {way: [] for way in WAYS}
    for _ in range(PROCESSES):
        for way, found in peaks.items():
            found.append(peak_megabytes(workload, way, 1))
    extra = [a / b - 1 for a, b in zip(peaks["traced"], peaks["plain"], strict=True)]
    medians = {f"{way}_mb": significant(statistics.median(found)) for way, found in peaks.items()}
    return {"extra": rounded(spread(extra), 3), **medians}


def all_cases() -> dict[str, Callable[[], dict[str, Any]]]:
    """Return every case by its key in the results: the kind, then what is measured."""
    networks = workloads.available()
    timed = {
        f"time | {name} | {threads}": partial(measure_time, build, threads)
        for threads in THREADS
        for name, build in networks.items()
    }
    deep = {f"depth | {layers}": partial(measure_depth, layers) for layers in DEPTHS}
    sized = {f"memory | {name}": partial(measure_memory, name) for name in networks}
    costs = {f"cost | {name}": partial(measure_cost, *rest) for name, (_, *rest) in COSTS.items()}
    multiples = {f"cost | {name}": partial(measure_parameter_multiples, name) for name in MEMORY_WAYS}
    return {**timed, **deep, **sized, **costs, **multiples}


def render(results: Results) -> str:
    """Return the tables of docs/lab-notes/performance.md."""
    where = results["machine"]
    parts = [f"Measured on {where['cpu']}; torch {where['torch']}, Python {where['python']}."]
    for kind, (title, show) in SECTIONS.items():
        measured = of_kind(results, kind)
        parts += [f"### {title}", show(results) if measured else "Not measured yet."]
    return "\n\n".join(parts)


def render_costs(results: Results) -> str:
    goals = {name: goal for name, (goal, *_) in {**COSTS, **MEMORY_WAYS}.items()}
    rows = [
        [
            name,
            f"**{found['median']:.2f}**",
            "" if name in MEMORY_WAYS else middle(found),
            f"≤ {goals[name]:g}",
        ]
        for (name,), found in of_kind(results, "cost")
    ]
    return table(["cost", "ratio", "middle half", "goal"], rows)


def render_time(results: Results) -> str:
    rows = []
    for (name, threads), found in of_kind(results, "time"):
        goal, limit = GOALS[next(each for each in GOALS if name.startswith(each))]
        times = [f"{found['plain_ms']:.0f} ms", f"{found['traced_ms']:.0f} ms"]
        target = f"≤ {goal}" + (f" (must: {limit})" if limit else "")
        rows.append(
            [name, threads, *times, f"**{found['ratio']['median']:.2f}**", middle(found["ratio"]), target]
        )
    return table(["network", "threads", "plain pass", "traced", "ratio", "middle half", "goal"], rows)


def render_depth(results: Results) -> str:
    rows = [
        [
            key[0],
            f"{found['ops']}",
            f"{found['extra_us_per_op']['median']:.0f} µs",
            middle(found["extra_us_per_op"], 0),
        ]
        for key, found in of_kind(results, "depth")
    ]
    return table(["layers", "ops", "extra per op", "middle half"], rows)


def render_memory(results: Results) -> str:
    rows = [
        [
            key[0],
            f"{found['plain_mb']:.0f} MB",
            f"{found['traced_mb']:.0f} MB",
            f"**{100 * found['extra']['median']:+.1f} %**",
            f"≤ {100 * MEMORY_GOAL:.0f} %",
        ]
        for key, found in of_kind(results, "memory")
    ]
    return table(["network", "plain pass, peak", "traced, peak", "extra", "goal"], rows)


SECTIONS: dict[str, tuple[str, Callable[[Results], str]]] = {
    "time": ("Time", render_time),
    "depth": ("Time per op, by depth", render_depth),
    "memory": ("Memory", render_memory),
    "cost": ("Costs and their goals", render_costs),
}


def of_kind(results: Results, kind: str) -> list[tuple[list[str], dict[str, Any]]]:
    keys = [key.split(" | ") for key in results["cases"]]
    return [(key[1:], results["cases"][" | ".join(key)]) for key in keys if key[0] == kind]


def middle(found: dict[str, float], digits: int = 2) -> str:
    each = Spread(**found)
    return f"{each.low:.{digits}f} to {each.high:.{digits}f}"


def quick() -> None:
    small = {
        "Transformer": partial(workloads.transformer, layers=2, width=32, length=16, batch=2),
        "MLP": partial(workloads.mlp, layers=10, width=32, batch=8),
        "residual conv net": partial(workloads.conv, blocks=1, width=8, batch=2),
    }
    for name, build in small.items():
        print(f"{name:20} ratio {measure_time(build, 1, rounds=3)['ratio']['median']:.2f}")
    print(f"extra per op at 10 layers: {measure_depth(10, rounds=3)['extra_us_per_op']['median']:.0f} µs")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="small models, few rounds; stores nothing")
    if parser.parse_args().quick:
        quick()
        return
    results = run_missing("trace", all_cases(), partial(print, flush=True))
    fill_file(ROOT / "docs" / "lab-notes" / "performance.md", "trace", render(results))


if __name__ == "__main__":
    main()
