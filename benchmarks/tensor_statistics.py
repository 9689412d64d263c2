"""Measure how fast PyTorch reduces a tensor: which form of each statistic is cheap enough to compute for every op.

    python -m benchmarks.tensor_statistics

One thread reduces one million float32 elements, dense (normal samples) and after a ReLU, because a form that branches
on the data is slow if the branches are hard to predict. Results: GB/s of input, in benchmarks/results/statistics.json.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.linalg import vector_norm

from benchmarks.result_files import ROOT, Results, fill_file, run_missing, table
from benchmarks.timing import alternate, significant

ELEMENTS = 1_000_000
ROUNDS = 301

FORMS: dict[str, tuple[str, Callable[[Tensor], object]]] = {
    "sum": ("x.sum()", torch.sum),
    "sum in float64": ("x.sum(dtype=torch.float64)", lambda x: x.sum(dtype=torch.float64)),
    "norm": ("vector_norm(x)", vector_norm),
    "norm in float64": ("vector_norm(x, dtype=torch.float64)", lambda x: vector_norm(x, dtype=torch.float64)),
    "square, mean": ("x.pow(2).mean()", lambda x: x.pow(2).mean()),
    "extremes": ("x.aminmax()", torch.aminmax),
    "infinity norm": ("vector_norm(x, math.inf)", lambda x: vector_norm(x, float("inf"))),
    "absolute maximum": ("x.abs().max()", lambda x: x.abs().max()),
    "count of non-zeros": ("x.count_nonzero()", torch.count_nonzero),
    "count by sign": ("vector_norm(x.sign())", lambda x: vector_norm(x.sign())),
    "all finite": ("x.isfinite().all()", lambda x: x.isfinite().all()),
    "variance and mean": ("torch.var_mean(x)", torch.var_mean),
}


def main() -> None:
    results = run_missing("statistics", {"one thread": measure}, print)
    fill_file(ROOT / "docs" / "lab-notes" / "log.md", "statistics", render(results))


def measure() -> dict[str, Any]:
    torch.set_num_threads(1)
    dense = torch.randn(ELEMENTS, generator=torch.Generator().manual_seed(0))
    speeds = {"dense": speed(dense), "relu": speed(dense.relu())}
    return {form: {data: speeds[data][form] for data in speeds} for form in FORMS}


def speed(x: Tensor) -> dict[str, float]:
    """Return the GB/s of each form, from the median time of many alternating runs."""
    ways = {form: lambda call=call: call(x) for form, (_, call) in FORMS.items()}
    seconds = alternate(ways, rounds=ROUNDS, warmups=10)
    size = x.numel() * x.element_size() / 1e9
    return {form: significant(size / statistics.median(times), 2) for form, times in seconds.items()}


def render(results: Results) -> str:
    """Return the table of docs/lab-notes/log.md."""
    speeds = results["cases"]["one thread"]
    rows = [
        [f"`{FORMS[form][0]}`", f"{each['dense']:g}", f"{each['relu']:g}"] for form, each in speeds.items()
    ]
    where = f"{results['machine']['cpu']}; torch {results['machine']['torch']}; one thread."
    return table(["form", "GB/s, dense", "GB/s, after ReLU"], rows) + f"\n\n{where}"


if __name__ == "__main__":
    main()
