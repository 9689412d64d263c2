"""What a healthy small model reaches in the budget, for each data set: the origin of `data.FITTED`.

    python -m benchmarks.verdicts.reference

Three seeds of two hidden layers at the critical initialization under Adam (for text: a pre-norm language model of two
blocks), the median of the lowest loss.
"""

from __future__ import annotations

import statistics

import torch

from benchmarks.verdicts.data import FITTED
from benchmarks.verdicts.problem import Problem
from benchmarks.verdicts.recipe import HEALTHY_RATES
from benchmarks.verdicts.truth import train

# Heuristic: the fewest seeds that have a median.
SEEDS = 3


def reference_problem(data: str, seed: int) -> Problem:
    """The healthy small model for the data."""
    if data == "text":
        rate = HEALTHY_RATES["text"]["adam"] / 3
        return Problem(
            family="lm",
            cause="none",
            data=data,
            depth=2,
            width=32,
            scheme="pre",
            rate=rate,
            batch=16,
            seed=seed,
        )
    rate = HEALTHY_RATES["image"]["adam"]
    return Problem(
        family="mlp", cause="none", data=data, depth=2, width=32, init="critical", rate=rate, seed=seed
    )


def reference_loss(data: str) -> float:
    """The median over seeds of the lowest mean loss, trained to the end of the budget."""
    return statistics.median(
        min(train(reference_problem(data, seed), stop=False).windows()) for seed in range(SEEDS)
    )


def main() -> None:
    torch.set_num_threads(1)
    for data, used in FITTED.items():
        print(f"{data}: measured {reference_loss(data):.3f}, used {used}")


if __name__ == "__main__":
    main()
