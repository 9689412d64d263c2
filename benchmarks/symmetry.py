"""Measure how the time of the symmetry reading grows with depth.

    python -m benchmarks.symmetry

Results: benchmarks/results/symmetry.json and the table of docs/explanation/symmetry.md.
"""

from __future__ import annotations

import time
from functools import partial

import torch
from torch import nn

from benchmarks.result_files import ROOT, Results, fill_file, run_missing, table
from leadline.nn import Encoder
from leadline.readings.symmetry.reading import read_symmetry
from leadline.records import Trace
from leadline.tracer.trace import trace

DEPTHS = (10, 30, 100, 300, 1000)
WIDTH, ROUNDS = 8, 3
KINDS = {"plain": "plain ReLU network", "pre-norm": "pre-norm Transformer"}


def trace_of(kind: str, depth: int) -> Trace:
    torch.manual_seed(0)
    if kind == "plain":
        layers = [each for _ in range(depth) for each in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
        return trace(nn.Sequential(*layers, nn.Linear(WIDTH, 2)), torch.randn(4, WIDTH), loss=energy)
    return trace(Encoder(WIDTH, 2, depth, scheme="pre"), torch.randn(2, 4, WIDTH), loss=energy)


def energy(output: torch.Tensor) -> torch.Tensor:
    return output.square().mean()


def measure(kind: str, depth: int) -> dict[str, float]:
    """Return the processor time of the fastest of a few readings."""
    seen = trace_of(kind, depth)
    seconds = []
    for _ in range(ROUNDS):
        begin = time.process_time()
        found = read_symmetry(seen)
        seconds.append(time.process_time() - begin)
    return {
        "ops": len(seen.ops),
        "tensors": len(found.tensors),
        "dimension": found.dimension,
        "inert": len(found.inert),
        "seconds": round(min(seconds), 4),
    }


def render(results: Results) -> str:
    rows = [
        [
            KINDS[key.split(" ")[0]],
            key.split(" ")[1],
            *(str(case[name]) for name in ("ops", "tensors", "dimension", "inert")),
            f"{case['seconds']:.2g} s",
        ]
        for key, case in results["cases"].items()
    ]
    return table(["network", "layers", "ops", "tensors", "free rescalings", "inert tensors", "time"], rows)


def main() -> None:
    cases = {f"{kind} {depth}": partial(measure, kind, depth) for kind in KINDS for depth in DEPTHS}
    results = run_missing("symmetry", cases, print)
    fill_file(ROOT / "docs" / "explanation" / "symmetry.md", "symmetry", render(results))


if __name__ == "__main__":
    main()
