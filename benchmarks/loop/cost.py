"""Measure what `leadline run` costs per step, on loops with short and long steps.

    python -m benchmarks.loop.cost

For each length of a step two processes train the same model: one alone, one under `leadline run`. They take turns, a
block of steps each, so that the state of the machine is the same for both, and processor time counts. The blocks begin
after the first step was checked. A length that has a result is skipped; delete it from
benchmarks/results/loop_cost.json to measure it again.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.result_files import ROOT, Results, fill_file, run_missing, table
from leadline.monitor.runfile import Run

NAME = "loop_cost"
PAGE = ROOT / "docs" / "explanation" / "loop.md"
# Milliseconds of a step.
LENGTHS = (2, 5, 10, 20, 50)
# Seconds that each of the two processes trains, and into how many blocks they are split.
SECONDS = 10.0
BLOCKS = 32
WIDTH, LAYERS = 128, 8
LARGEST_BATCH = 4096

PROGRAM = """
import sys, time, torch
from torch import nn
torch.set_num_threads(1)
torch.manual_seed(0)
model = nn.Sequential(*[m for _ in range({layers}) for m in (nn.Linear({width}, {width}), nn.ReLU())])
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
data = torch.randn(4096, {width})
def train(batch, steps):
    for step in range(steps):
        x = data[torch.randint(len(data), (batch,))]
        loss = nn.functional.mse_loss(model(x), x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
for line in sys.stdin:
    batch, steps = map(int, line.split())
    start = time.process_time()
    train(batch, steps)
    print(time.process_time() - start, flush=True)
"""


class Trainer:
    """A process that trains so many steps when it is told to."""

    def __init__(self, folder: Path, *, attached: bool) -> None:
        script = folder / "program.py"
        script.write_text(PROGRAM.format(layers=LAYERS, width=WIDTH), encoding="utf-8")
        self.store = folder / "run.leadline"
        launcher = ["-m", "leadline", "run", "-q", "--no-rehearsal", "--store", str(self.store)]
        self._process = subprocess.Popen(
            [sys.executable, *(launcher if attached else ()), str(script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            text=True,
        )

    def step_seconds(self, batch: int, steps: int) -> float:
        """Train, and return the processor seconds per step."""
        pipe, answers = self._process.stdin, self._process.stdout
        if pipe is None or answers is None:
            raise RuntimeError("the process has no pipes")
        pipe.write(f"{batch} {steps}\n")
        pipe.flush()
        return float(answers.readline()) / steps

    def close(self) -> None:
        self._process.communicate()


def batch_for(trainer: Trainer, length: int) -> int:
    """The batch size with which a step takes about `length` milliseconds."""
    batch = 16
    while batch < LARGEST_BATCH:
        trainer.step_seconds(batch, 2)
        if 1000 * trainer.step_seconds(batch, 8) >= 0.8 * length:
            break
        batch *= 2
    return batch


def measure(length: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name:
        alone = Trainer(Path(name), attached=False)
        batch = batch_for(alone, length)
        attached = Trainer(Path(name), attached=True)
        attached.step_seconds(batch, 3)  # the first step is checked
        steps = max(1, round(1000 * SECONDS / BLOCKS / length))
        pairs = [
            (alone.step_seconds(batch, steps), attached.step_seconds(batch, steps)) for _ in range(BLOCKS)
        ]
        alone.close()
        attached.close()
        charged = _charged_overhead(attached.store)
    later = pairs[BLOCKS // 2 :]
    return {
        "steps": steps * BLOCKS,
        "step_ms": 1000 * statistics.median(a for a, _ in pairs),
        "ratio": sum(b for _, b in pairs) / sum(a for a, _ in pairs),
        "ratio_later": statistics.median(b / a for a, b in later),
        "added_us_later": 1e6 * statistics.median(b - a for a, b in later),
        "charged": charged,
    }


def _charged_overhead(store: Path) -> float:
    """The overhead that the watch has charged to its budget."""
    with Run(store) as run:
        return run.latest("overhead") or 0.0


def render(results: Results) -> str:
    rows = [
        [
            f"{case['step_ms']:.1f} ms",
            f"{case['steps']:,}",
            f"{100 * (case['ratio'] - 1):+.1f} %",
            f"{100 * (case['ratio_later'] - 1):+.1f} %",
            f"{case['added_us_later']:.0f} us",
            f"{100 * case['charged']:.1f} %",
        ]
        for case in results["cases"].values()
    ]
    return table(
        ["step alone", "steps", "all steps", "second half", "per step, second half", "charged to the budget"],
        rows,
    )


def main() -> None:
    cases = {f"{length} ms": partial(measure, length) for length in LENGTHS}
    results = run_missing(NAME, cases, lambda key: print(key, file=sys.stderr, flush=True))
    fill_file(PAGE, "loop cost", render(results))


if __name__ == "__main__":
    main()
