"""Measures the cost of an update reading relative to a plain training step on the same batch.

    python -m benchmarks.update            measure networks without a result, fill docs/explanation/update.md
    python -m benchmarks.update --quick    small models, few rounds; prints, stores nothing

The variants alternate in one process with one thread, timed in processor time; the result is the median of their
ratios per round. A plain step is forward, backward and AdamW's step. The reading includes the trace that finds the
depth axis.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch

import leadline
from benchmarks import workloads
from benchmarks.result_files import ROOT, Results, fill_file, run_missing, table
from benchmarks.timing import alternate, ratio, rounded, significant
from leadline import Case

ROUNDS = 5
# Heuristic: seconds for the rounds of one network; at least a third of the rounds are run.
MAX_SECONDS_PER_CASE = 40.0
DEPTHS = (10, 50, 250)  # layers of an MLP: cost must be linear in depth
GOALS = {"reading": 5.0, "with sharpness": 25.0}  # plain steps; from the project's requirements

NETWORKS: dict[str, Callable[[], Case]] = {
    "Transformer, 8 layers, d=128, 4 × 64 tokens": partial(
        workloads.transformer, layers=8, width=128, length=64, batch=4
    ),
    "MLP, 100 layers, width 128, batch 64": partial(workloads.mlp, layers=100),
    "residual conv net, 26 layers, 32 × 32, batch 16": partial(workloads.conv, blocks=4, batch=16),
}


def with_adam(case: Case) -> Case:
    return replace(case, optimizer=torch.optim.AdamW(case.model.parameters(), lr=1e-4))


def plain(case: Case) -> None:
    """Do one plain training step."""
    case.optimizer.zero_grad()
    case.loss(case.model(case.inputs), case.targets).backward()
    case.optimizer.step()


def reading(case: Case, *, sharpness: bool = False) -> None:
    leadline.update(case.model, case.inputs, case.targets, case.loss, case.optimizer, sharpness=sharpness)


def measure(build: Callable[[], Case], rounds: int = ROUNDS) -> dict[str, Any]:
    case = with_adam(build())
    momentum = torch.optim.SGD(case.model.parameters(), lr=1e-6, momentum=0.9)
    ways = {
        "plain": partial(plain, case),
        "reading": partial(reading, case),
        "with sharpness": partial(reading, replace(case, optimizer=momentum), sharpness=True),
    }
    seconds = alternate(
        ways, rounds=rounds, warmups=1, patience=MAX_SECONDS_PER_CASE, clock=time.process_time
    )
    return {
        "plain_ms": significant(1e3 * statistics.median(seconds["plain"]), 3),
        **{way: rounded(ratio(seconds[way], seconds["plain"]), 3) for way in ("reading", "with sharpness")},
    }


def all_cases() -> dict[str, Callable[[], dict[str, Any]]]:
    deep = {
        f"MLP of {n} layers, width 32": partial(workloads.mlp, layers=n, width=32, batch=8) for n in DEPTHS
    }
    return {name: partial(measure, build) for name, build in (NETWORKS | deep).items()}


def render(results: Results) -> str:
    rows = [
        [
            name,
            f"{case['plain_ms']:.3g} ms",
            *(f"**{case[way]['median']:.1f}**" for way in GOALS),
            _milliseconds_per_layer(name, case),
        ]
        for name, case in results["cases"].items()
    ]
    goals = ["goal", "", *(f"≤ {goal:.0f}" for goal in GOALS.values()), "the same at any depth"]
    return table(
        ["network", "plain step", "`update`", "with `sharpness=True`", "`update`, per layer"], [*rows, goals]
    )


def _milliseconds_per_layer(name: str, case: dict[str, Any]) -> str:
    """Return the milliseconds per layer, for networks that differ only in depth."""
    layers = next((n for n in DEPTHS if name.startswith(f"MLP of {n} layers")), None)
    return "" if layers is None else f"{case['plain_ms'] * case['reading']['median'] / layers:.1f} ms"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="small models, few rounds; stores nothing")
    torch.set_num_threads(1)
    if parser.parse_args().quick:
        print(measure(partial(workloads.mlp, layers=6, width=16, batch=8), rounds=2))
        return
    results = run_missing("update", all_cases(), partial(print, flush=True))
    fill_file(ROOT / "docs" / "explanation" / "update.md", "update-cost", render(results))


if __name__ == "__main__":
    main()
