r"""Compares the highest rate that trains at each depth with the sharpness that theory relates it to.

    python -m benchmarks.rate_edge            measure cases without a result, fill docs/lab-notes/phase.md
    python -m benchmarks.rate_edge --table    only fill docs/lab-notes/phase.md

A step of gradient descent is stable up to $\eta = 2/\lambda$, where $\lambda$ is the largest eigenvalue of the
Gauss-Newton matrix $\frac1B \sum_i J_i^\top (\mathrm{diag}(p_i) - p_i p_i^\top) J_i$, with $J_i$ the Jacobian of the
logits of sample $i$ and $p_i$ its probabilities. In a plain network at the critical gain $\lambda$ is a sum over
layers: theory's $\eta \sim 1/N$.
"""

from __future__ import annotations

import argparse
import math
import statistics
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from benchmarks.result_files import ROOT, Results, fill_file, load, run_missing, table
from benchmarks.timing import significant
from leadline.lab.data import standardized_digits
from leadline.lab.fleet import Net, Task, build_alone, train_fleet
from leadline.lab.phase.plan import KINDS
from leadline.lab.phase.record import MIN_TRAINED_ACCURACY

KIND = KINDS["rate"]
SAMPLES, BATCH = 1024, 64
SHARPNESS_SEEDS = 3
# Heuristic: after this many rounds the power iteration changes by less than a percent.
ROUNDS = 12
SEEDS = 2
MULTIPLES = tuple(2 ** (half / 2) for half in range(-2, 8))  # of 2/lambda: 1/2 to 11, in half octaves


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Networks of one width and depth, at every multiple of the rate that is stable at the start."""

    width: int
    depth: int
    steps: int = 300

    @property
    def name(self) -> str:
        return f"width {self.width}, {self.depth} layers, {self.steps} steps"


CASES = [
    *(Case(width=64, depth=depth) for depth in (4, 9, 20, 45, 100)),
    *(Case(width=64, depth=depth, steps=1200) for depth in (45, 100)),
    *(Case(width=256, depth=depth) for depth in (4, 9, 20)),
]


def task_of(case: Case) -> Task:
    inputs, targets = standardized_digits()
    order = torch.Generator().manual_seed(0)
    return Task(
        inputs=inputs[:SAMPLES],
        targets=targets[:SAMPLES],
        batches=torch.randint(SAMPLES, (case.steps, BATCH), generator=order),
        width=case.width,
    )


def net_of(case: Case, seed: int, rate: float = 0.1) -> Net:
    return Net(
        depth=case.depth, gain=KIND.gain, bias=KIND.bias, rate=rate, activation=KIND.activation, seed=seed
    )


def sharpness(net: Net, task: Task) -> float:
    """Return the largest eigenvalue of the Gauss-Newton matrix on one batch, at the start."""
    model = build_alone(net, task)
    weights = list(model.parameters())
    logits = model(task.inputs[task.batches[0]])
    p = logits.softmax(1).detach()
    dummy = torch.zeros_like(logits, requires_grad=True)
    pulled = torch.autograd.grad(logits, weights, dummy, create_graph=True)
    direction = [torch.randn(each.shape, generator=torch.Generator().manual_seed(1)) for each in weights]
    eigenvalue = 0.0
    for _ in range(ROUNDS):
        length = math.sqrt(sum(float(each.square().sum()) for each in direction))
        (moved,) = torch.autograd.grad(
            pulled, dummy, [each / length for each in direction], retain_graph=True
        )
        curved = (p * moved - p * (p * moved).sum(1, keepdim=True)) / BATCH
        direction = list(torch.autograd.grad(logits, weights, curved, retain_graph=True))
        eigenvalue = math.sqrt(sum(float(each.square().sum()) for each in direction))
    return eigenvalue


def measure(case: Case) -> dict[str, Any]:
    task = task_of(case)
    eigenvalue = statistics.median(sharpness(net_of(case, seed), task) for seed in range(SHARPNESS_SEEDS))
    rates = [multiple * 2 / eigenvalue for multiple in MULTIPLES]
    nets = [net_of(case, seed, rate) for rate in rates for seed in range(SEEDS)]
    accuracies = train_fleet(nets, task).accuracy.view(len(rates), SEEDS).mean(1).tolist()
    trained = [rate for rate, share in zip(rates, accuracies, strict=True) if share >= MIN_TRAINED_ACCURACY]
    return {
        "width": case.width,
        "depth": case.depth,
        "steps": case.steps,
        "stable": significant(2 / eigenvalue, 3),
        "accuracy": [round(each, 3) for each in accuracies],
        "edge": significant(max(trained), 3) if trained else None,
    }


def depth_exponent(cases: list[dict[str, Any]], name: str) -> float | None:
    """Return the slope of log(`name`) against log(depth), over the depths that have a value."""
    points = [(math.log(each["depth"]), math.log(each[name])) for each in cases if each[name] is not None]
    if len(points) < 3:
        return None
    return statistics.linear_regression(*zip(*points, strict=True)).slope


def render(results: Results) -> str:
    cases = sorted(results["cases"].values(), key=lambda each: (each["width"], each["steps"], each["depth"]))
    rows = [
        [
            str(each["width"]),
            str(each["depth"]),
            str(each["steps"]),
            f"{each['stable']:.3g}",
            "none" if each["edge"] is None else f"{each['edge']:.3g}",
            "" if each["edge"] is None else f"{each['edge'] / each['stable']:.2g}",
            f"{max(each['accuracy']):.0%}",
        ]
        for each in cases
    ]
    head = [
        "width",
        "layers",
        "steps",
        "2/λ at the start",
        "highest rate that trains",
        "over 2/λ",
        "best accuracy",
    ]
    parts = [table(head, rows)]
    for width in sorted({each["width"] for each in cases}):
        mine = [each for each in cases if each["width"] == width and each["steps"] == 300]
        exponents = [f"{name} falls like depth^{slope:.2f}" for name, slope in _exponents(mine)]
        parts.append(f"Width {width}, 300 steps: {', '.join(exponents)}.")
    return "\n\n".join(parts)


def _exponents(cases: list[dict[str, Any]]) -> list[tuple[str, float]]:
    slopes = {
        "2/λ": depth_exponent(cases, "stable"),
        "the highest rate that trains": depth_exponent(cases, "edge"),
    }
    return [(name, slope) for name, slope in slopes.items() if slope is not None]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--no-docs", action="store_true", help="measure only")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if not options.table:
        run_missing("rate_edge", {case.name: partial(measure, case) for case in CASES}, print)
    if not options.no_docs:
        fill_file(ROOT / "docs" / "lab-notes" / "phase.md", "rate_edge", render(load("rate_edge")))


if __name__ == "__main__":
    main()
