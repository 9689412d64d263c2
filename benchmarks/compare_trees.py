"""Processor time of common commands in two source trees, as ratios measured side by side.

    git worktree add ../old REVISION
    python -m benchmarks.compare_trees ../old/src src [--rounds 5]

Each case runs in a fresh process, alternately in the old and the new tree, on one thread. A ratio below 1 means that
the new tree is faster. Nothing is stored: a ratio holds for two revisions on one machine.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from statistics import median

from benchmarks.timing import alternate

MODEL = """
import torch, leadline
from torch import nn
torch.manual_seed(0)
layers = [part for _ in range(40) for part in (nn.Linear(64, 64), nn.ReLU())]
model = nn.Sequential(*layers, nn.Linear(64, 10))
inputs, targets = torch.randn(64, 64), torch.randint(10, (64,))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
case = leadline.Case(model, inputs, targets, nn.functional.cross_entropy, optimizer)
"""
CASES: dict[str, list[str]] = {
    "import leadline": ["-c", "import leadline"],
    "leadline --help": ["-m", "leadline", "--help"],
    "leadline rules": ["-m", "leadline", "rules"],
    "leadline fixes": ["-m", "leadline", "fixes"],
    "check, 40-layer MLP": ["-c", f"{MODEL}\nleadline.check(case)"],
    "fix, 40-layer MLP": ["-c", f"{MODEL}\nleadline.fix(case)"],
}


def processor_seconds(tree: Path, arguments: Sequence[str]) -> float:
    """Run Python with `tree` first on its path, and return the processor time of that process."""
    environment = {**os.environ, "PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"}
    before = os.times()
    subprocess.run([sys.executable, *arguments], env=environment, check=True, stdout=subprocess.DEVNULL)
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("old", type=lambda text: Path(text).resolve())
    parser.add_argument("new", type=lambda text: Path(text).resolve())
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    for name, command in CASES.items():
        seconds: dict[str, list[float]] = {"old": [], "new": []}

        def measure(
            side: str, command: Sequence[str] = command, seconds: dict[str, list[float]] = seconds
        ) -> None:
            seconds[side].append(processor_seconds(getattr(arguments, side), command))

        alternate({side: partial(measure, side) for side in seconds}, rounds=arguments.rounds, warmups=1)
        old, new = (median(seconds[side][1:]) for side in ("old", "new"))
        print(f"{name:22} {old:6.2f} s -> {new:6.2f} s   ratio {new / old:.2f}", flush=True)


if __name__ == "__main__":
    main()
