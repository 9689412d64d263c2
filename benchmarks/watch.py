"""What watching costs: a training step with a monitor, next to the same step without.

    python -m benchmarks.watch            measure what has no result yet, fill docs/reference/watch.md
    python -m benchmarks.watch --quick    small models, few rounds; prints, stores nothing

Every way trains its own copy of the network, one thread, processor time; steps of all ways alternate. "Everything,
every step" is the median of round-by-round ratios. The default budget is no matter of medians, as its samples are rare
by design: see benchmarks/watch_budget.py.
Peers that are not installed are left out. See benchmarks/monitors.py for what each one records.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks import monitors, workloads
from benchmarks.result_files import ROOT, Results, fill_file, run_missing, table
from benchmarks.timing import alternate, ratio, rounded, significant
from benchmarks.training_loop import Loop
from benchmarks.watch_budget import measure_budget
from leadline import Case

NETWORKS: dict[str, tuple[Callable[[], Case], int]] = {  # and steps of the long run with the default budget
    "Transformer, 24 layers, d=256": (workloads.transformer, 120),
    "MLP, 200 layers, width 128": (workloads.mlp, 2000),
    "conv net, 50 layers": (workloads.conv, 300),
}
FAST: dict[str, tuple[Callable[[], Case], int]] = {
    "MLP, 3 layers, width 32": (partial(workloads.mlp, layers=3, width=32, batch=32), 10_000)
}
# A run that ends before the first trace is paid back.
SHORT: dict[str, tuple[Callable[[], Case], int]] = {
    "Transformer, 32 layers, d=64": (
        partial(workloads.transformer, layers=32, width=64, length=64, batch=16),
        60,
    )
}
ROUNDS = 9
# Heuristic: seconds for the rounds of one case; at least a third of the rounds are run.
MAX_SECONDS_PER_CASE = 60.0
CONTROL = "no watch"
GOALS = {"leadline: every parameter": (1.05, 1.5, 1.1)}
BUDGET_GOALS = dict.fromkeys(NETWORKS, "1.01") | dict.fromkeys(SHORT, "1.02")


def measure_every_step(name: str, build: Callable[[], Case], rounds: int = ROUNDS) -> dict[str, Any]:
    """Return the median ratio of a monitor that records everything at every step."""
    with tempfile.TemporaryDirectory() as folder:
        loops = {"plain": Loop(build), "watched": Loop(build)}
        try:
            loops["watched"].attach(monitors.EVERY_STEP[name], Path(folder))
            loops["watched"].step()
        except Exception as error:  # of a peer that does not bear this network: that is its result
            if name.startswith("leadline"):
                raise
            return {"error": f"{type(error).__name__}: {str(error).splitlines()[0]}"}
        ways = {way: loop.step for way, loop in loops.items()}
        seconds = alternate(
            ways, rounds=rounds, warmups=2, patience=MAX_SECONDS_PER_CASE, clock=time.process_time
        )
        for loop in loops.values():
            loop.close()
    plain = significant(1e3 * statistics.median(seconds["plain"]), 3)
    return {"ratio": rounded(ratio(seconds["watched"], seconds["plain"])), "plain_ms": plain}


def all_cases() -> dict[str, Callable[[], dict[str, Any]]]:
    cases: dict[str, Callable[[], dict[str, Any]]] = {}
    for network, (build, steps) in (NETWORKS | SHORT | FAST).items():
        cases[f"budget | default budget | {network}"] = partial(measure_budget, build, steps)
        cases[f"budget | {CONTROL} | {network}"] = partial(measure_budget, build, steps, watched=False)
    for name in monitors.available():
        for network, (build, _) in NETWORKS.items():
            cases[f"every step | {name} | {network}"] = partial(measure_every_step, name, build)
    return cases


def render(results: Results) -> str:
    """Return the tables of docs/reference/watch.md."""
    where = results["machine"]
    parts = [
        f"Measured on {where['cpu']}; torch {where['torch']}, Python {where['python']}; one thread, processor time.",
        "Step time divided by that of the plain step, with everything recorded at every step:",
        _every_step(results),
        "The default budget (1 %), summed over all steps of a run; the first trace is paid in advance, so it matters "
        "most in short runs:",
        _by_budget(results),
    ]
    return "\n\n".join(parts)


def _every_step(results: Results) -> str:
    rows = []
    for name in dict.fromkeys(key.split(" | ")[1] for key in results["cases"] if key.startswith("every")):
        cells = [results["cases"].get(f"every step | {name} | {network}") for network in NETWORKS]
        goal = " / ".join(map(str, GOALS[name])) if name in GOALS else ""
        rows.append([name, *[_cell(each) for each in cells], goal])
    return table(["monitor", *NETWORKS, "goal"], rows)


def _cell(found: dict[str, Any] | None) -> str:
    if found is None:
        return ""
    return "fails" if "error" in found else f"{found['ratio']['median']:.2f}"


def _by_budget(results: Results) -> str:
    rows = []
    for network in NETWORKS | SHORT | FAST:
        found = results["cases"].get(f"budget | default budget | {network}")
        if found is not None:
            whole, later = f"{found['ratio']:.3f}", f"{found['second_half']:.3f}"
            step = f"{significant(found['plain_ms'], 2):g} ms"
            rows.append([network, step, str(found["steps"]), str(found["samples"]), whole, later])
            rows[-1] += [f"{found['own_estimate']:.3f}", BUDGET_GOALS.get(network, "")]
            control = results["cases"].get(f"budget | {CONTROL} | {network}")
            rows[-1] += [f"{control['ratio']:.3f}, {control['second_half']:.3f}" if control else ""]
    head = [
        "network",
        "step time",
        "steps",
        "traces",
        "all steps",
        "second half",
        "reported by the watch",
        "goal",
        "two plain loops",
    ]
    return table(head, rows)


def quick() -> None:
    small = partial(workloads.mlp, layers=10, width=32, batch=8)
    for name in monitors.available():
        print(f"{name:30} {measure_every_step(name, small, rounds=3)['ratio']['median']:.2f}")
    print("default budget", measure_budget(small, 50)["ratio"])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="a small model, few rounds; stores nothing")
    parser.add_argument("--only", default="", help="measure only cases whose name has this in it")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    if chosen.quick:
        quick()
        return
    cases = {key: measure for key, measure in all_cases().items() if chosen.only in key}
    results = run_missing("watch", cases, partial(print, flush=True))
    fill_file(ROOT / "docs" / "reference" / "watch.md", "watch", render(results))


if __name__ == "__main__":
    main()
