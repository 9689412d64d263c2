r"""Measure what `leadline run` costs per step in the long run, on loops with short and long steps.

    python -m benchmarks.loop.cost

Two processes that train the same network differ by several percent without Leadline: where the weights lie in memory
and what the allocator did before decide it. So the processes that are compared are twins. A program starts under
`leadline run`, makes the steps that are followed on credit, and forks twice. The parent goes on under Leadline. In the
children Leadline ends with the fork, as it does in every fork, so they train alone, with the same weights at the same
addresses. The three take turns, a block of steps each, and the order rotates. Processor time counts, of all threads,
from the end of one block to the end of the next. With $w$, $a$ and $b$ for the parent and the children, the cost is
$2w/(a+b) - 1$, and $a/b - 1$ is the control: what the method reports where nothing was added.

All blocks are added up, so that rare work is in it. Where the memory of a process lies makes the twins differ by a few
percent, which more steps do not average out, so several programs of each length are measured; the page gives their mean
and its standard error. The parent waits while the others train, and writes its run file by the clock, so the cost of
writing is rather over- than underestimated. What the watch charges to its budget is read afterward, while the parent
trains as long again without interruption. A program that has a result is skipped; delete it from
benchmarks/results/loop_cost.json to measure it again.
"""

from __future__ import annotations

import math
import os
import statistics
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.result_files import ROOT, Results, fill_file, run_missing, table
from benchmarks.timing import significant

NAME = "loop_cost"
PAGE = ROOT / "docs" / "explanation" / "loop.md"
# Milliseconds of a step.
LENGTHS = (1, 2, 5, 10, 20, 50)
# Programs per length.
PROGRAMS = 3
# Seconds that each of the three processes trains, and into how many blocks they are split.
SECONDS = 2.5
BLOCKS = 25
# Least number of steps over which charges are read: the watch adds them up for up to 64 steps.
MIN_CHARGED_STEPS = 256
# Steps before the fork: more than those that are followed on credit.
FIRST_STEPS = 160
WIDTH = 128
# Layers by milliseconds of a step; the other lengths have MAX_LAYERS.
LAYERS, MAX_LAYERS = {1: 2, 2: 4}, 8
LARGEST_BATCH = 4096
# The allocator returns no memory to the system, which would cost page faults in one process and not in another.
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "MALLOC_TRIM_THRESHOLD_": "1000000000", "MALLOC_MMAP_MAX_": "0"}
ROLES = ("watched", "alone", "control")

PROGRAM = """
import gc, os, sys, time, torch
from torch import nn
from torch.optim import optimizer as hooks

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

def time_of(batch, steps):
    start = time.process_time()
    train(batch, steps)
    return (time.process_time() - start) / steps

def is_free():
    calls = (model._forward_hooks, model._forward_pre_hooks, optimizer._optimizer_step_post_hooks)
    shared = (hooks._global_optimizer_pre_hooks, hooks._global_optimizer_post_hooks)
    backward = torch.autograd._engine_run_backward
    return not any(map(len, (*calls, *shared))) and backward.__code__.co_filename.endswith("graph.py")

def answer(text):
    os.write(1, (text + "\\n").encode())

def work(lines):
    for line in lines:
        batch, steps = map(int, line.split())
        train(batch, steps)
        watches = sys.modules["leadline.monitor.watch"]._OPEN
        schedules = [each._schedule for each in watches]
        charged, trained = sum(each.spent for each in schedules), sum(each.trained for each in schedules)
        answer(" ".join(map(str, (time.process_time(), charged, trained))))

length = {length} / 1000
batch = 16
train(batch, 2)  # the first step is checked
while batch < {largest}:
    time_of(batch, 2)
    if min(time_of(batch, 4) for _ in range(3)) >= 0.8 * length:
        break
    batch *= 2
train(batch, {first_steps})
pipes = [os.pipe() for _ in range({children})]
for reading, _ in pipes:
    if os.fork() == 0:
        for _, writing in pipes:
            os.close(writing)
        assert is_free()
        gc.collect()
        with os.fdopen(reading) as lines:
            work(lines)
        os._exit(0)
for reading, _ in pipes:
    os.close(reading)
gc.collect()
answer(str(batch))
turns = [None, *(os.fdopen(writing, "w", buffering=1) for _, writing in pipes)]
for line in sys.stdin:
    turn, steps = map(int, line.split())
    if turns[turn]:
        turns[turn].write(str(batch) + " " + str(steps) + "\\n")
    else:
        work([str(batch) + " " + str(steps)])
"""


class Account(NamedTuple):
    """Seconds since a process started."""

    seconds: float
    """Processor time of all its threads."""
    charged: float
    """What its watch has charged to the budget."""
    trained: float
    """What training took without the watch."""


class Triplets:
    """A program under `leadline run` and its two forks, of which one trains when it is told to."""

    def __init__(self, folder: Path, length: int) -> None:
        script = folder / "program.py"
        text = PROGRAM.format(
            layers=LAYERS.get(length, MAX_LAYERS),
            width=WIDTH,
            length=length,
            largest=LARGEST_BATCH,
            children=len(ROLES) - 1,
            first_steps=FIRST_STEPS,
        )
        script.write_text(text, encoding="utf-8")
        self.store = folder / "run.leadline"
        launcher = ["-m", "leadline", "run", "-q", "--no-rehearsal", "--store", str(self.store)]
        self._process = subprocess.Popen(
            [sys.executable, *launcher, str(script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, **ENVIRONMENT},
            text=True,
        )
        self.batch = int(self._read())

    def _read(self) -> str:
        if self._process.stdout is None:
            raise RuntimeError("the process has no pipe")
        return self._process.stdout.readline()

    def train(self, role: int, steps: int) -> Account:
        """Let one process train, and return its account at the end."""
        if self._process.stdin is None:
            raise RuntimeError("the process has no pipe")
        self._process.stdin.write(f"{role} {steps}\n")
        self._process.stdin.flush()
        return Account(*map(float, self._read().split()))

    def close(self) -> None:
        self._process.communicate()


def measure(length: int) -> dict[str, Any]:
    steps = max(1, round(1000 * SECONDS / BLOCKS / length))
    with tempfile.TemporaryDirectory() as name:
        triplets = Triplets(Path(name), length)
        ends: list[list[Account]] = [[], [], []]
        for block in range(BLOCKS + 1):  # the first one warms up: pages are copied after a fork
            for turn in range(len(ROLES)):
                role = (block + turn) % len(ROLES)
                ends[role].append(triplets.train(role, steps))
        last = triplets.train(0, max(steps * BLOCKS, MIN_CHARGED_STEPS))
        triplets.close()
    watched, alone, control = (1e6 * (each[-1].seconds - each[0].seconds) / steps / BLOCKS for each in ends)
    before = ends[0][-1]
    return {
        "steps": steps * BLOCKS,
        "step_us": significant((alone + control) / 2),
        "added_us": significant(watched - (alone + control) / 2),
        "added_us_control": significant(alone - control),
        "charged": significant((last.charged - before.charged) / (last.trained - before.trained)),
        "first_steps_charged": significant(ends[0][0].charged / ends[0][0].trained),
    }


def render(results: Results) -> str:
    rows = []
    for length in LENGTHS:
        found = [each for key, each in results["cases"].items() if key.startswith(f"{length} ms,")]
        if found:
            rows.append(_row(found))
    header = ["step alone", "programs", "steps each", "added", "control", "charged"]
    return f"Measured on {results['machine']['cpu']}.\n\n{table(header, rows)}"


def _row(found: list[dict[str, Any]]) -> list[str]:
    return [
        f"{statistics.median(each['step_us'] for each in found) / 1000:.1f} ms",
        str(len(found)),
        f"{statistics.median(each['steps'] for each in found):,.0f}",
        _mean([each["added_us"] / each["step_us"] for each in found]),
        _mean([each["added_us_control"] / each["step_us"] for each in found]),
        _mean([each["charged"] for each in found]),
    ]


def _mean(shares: list[float]) -> str:
    """The mean with its standard error, in percent."""
    mean = f"{100 * statistics.fmean(shares):+.1f}"
    if len(shares) < 2:
        return f"{mean} %"
    return f"{mean} ± {100 * statistics.stdev(shares) / math.sqrt(len(shares)):.1f} %"


def main() -> None:
    cases = {
        f"{length} ms, {number}": partial(measure, length)
        for number in range(1, PROGRAMS + 1)
        for length in LENGTHS
    }
    results = run_missing(NAME, cases, lambda key: print(key, file=sys.stderr, flush=True))
    fill_file(PAGE, "loop cost", render(results))


if __name__ == "__main__":
    main()
