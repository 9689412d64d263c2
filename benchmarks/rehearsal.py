"""Measure what a check costs with and without its rehearsal, in plain training steps of the same model and batch.

    python -m benchmarks.rehearsal         measure cases without a result, fill docs/lab-notes/verdicts.md

The variants alternate in one process with one thread and are timed in process time; figures are medians of
round-by-round ratios. The rehearsal ends after eight steps if the network learns, after sixteen if its loss crawls, and
after 64 if it stays undecided. The first two are measured, the second with a rate at which nothing moves. Results:
benchmarks/results/rehearsal.json.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch

import leadline
from benchmarks import workloads
from benchmarks.result_files import ROOT, Results, fill_file, run_missing, table
from benchmarks.timing import alternate, ratio, rounded
from benchmarks.update import plain
from leadline import Case

NAME, MARK = "rehearsal", "rehearsal-cost"
PAGE = ROOT / "docs" / "lab-notes" / "verdicts.md"
ROUNDS = 3
NETWORKS: dict[str, Callable[[], Case]] = {
    "Transformer, 6 layers, d=128, 4 × 64 tokens": partial(
        workloads.transformer, layers=6, width=128, length=64, batch=4
    ),
    "MLP, 50 layers, width 128, batch 64": partial(workloads.mlp, layers=50),
    "residual conv net, 26 layers, 32 × 32, batch 16": partial(workloads.conv, blocks=4, batch=16),
}
WAYS = {"without": "check without it", "check": "check", "longest": "check, if nothing is learned"}


def measure(build: Callable[[], Case]) -> dict[str, Any]:
    """Return the ratio of each variant to a plain step."""
    made = build()
    case = replace(made, optimizer=torch.optim.AdamW(made.model.parameters(), lr=1e-3))
    stuck = replace(made, optimizer=torch.optim.AdamW(made.model.parameters(), lr=1e-12))
    ways = {
        "without": partial(leadline.check, case, rehearse=False),
        "check": partial(leadline.check, case),
        "longest": partial(leadline.check, stuck),
        "plain": partial(plain, stuck),
    }
    seconds = alternate(ways, rounds=ROUNDS, warmups=1, clock=time.process_time)
    return {name: rounded(ratio(seconds[name], seconds["plain"])) for name in WAYS}


def render(results: Results) -> str:
    rows = [
        [name, *(f"{found[way]['median']:.0f}" for way in WAYS)] for name, found in results["cases"].items()
    ]
    return table(["plain steps that it costs", *WAYS.values()], rows)


def main() -> None:
    torch.set_num_threads(1)
    results = run_missing(NAME, {name: partial(measure, build) for name, build in NETWORKS.items()}, print)
    fill_file(PAGE, MARK, render(results))


if __name__ == "__main__":
    main()
