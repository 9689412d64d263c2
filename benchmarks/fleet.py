"""Compare training 256 MLPs of width 64 and 2 to 32 layers as a fleet with training them one after the other.

    python -m benchmarks.fleet [CASE ...]     measure cases without a result, fill docs/lab-notes/phase.md
    python -m benchmarks.fleet --list         list the names of the cases
    python -m benchmarks.fleet --table        only fill docs/lab-notes/phase.md

A round trains every network for a few steps in both ways; the networks are built before. The figure is the median of
the round-by-round ratios: of processor time with one thread, of wall time with two. With two threads, the loop runs
with one and with two (small networks get slower with a second one), and the fleet is compared with the faster of these.
Results: benchmarks/results/fleet.json.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.result_files import ROOT, Results, fill_file, load, run_missing, table
from benchmarks.timing import alternate, ratio, rounded, significant, spread
from leadline.lab.fleet import Net, Task, build_alone
from leadline.lab.fleet.training import (
    StackedNets,
    default_chunk_size,
    flush_denormals,
    run_on_threads,
    split_into_chunks,
    stack_nets,
    step,
)

STEPS = 2
ROUNDS = 3
FEW, ROUNDS_OF_FEW = 8, 15  # fast cases are measured more often
GOALS = {  # speedup over the loop, from the project's requirements
    (16, 1): 6.2,
    (64, 1): 2.9,
    (256, 1): 1.7,
    (16, 2): 12.0,
    (64, 2): 6.0,
    (256, 2): 3.0,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Which networks are trained, and how."""

    batch: int
    threads: int = 1
    networks: int = 256
    width: int = 64
    activation: str = "tanh"
    deepest: int = 32

    @property
    def name(self) -> str:
        who = f"{self.networks} × width {self.width}, {self.activation}"
        return f"{who}, batch {self.batch}, {self.threads} thread{'s' if self.threads > 1 else ''}"


SETTINGS = [
    *(Setting(batch=batch, threads=threads) for threads in (1, 2) for batch in (16, 64, 256)),
    *(Setting(batch=batch, activation="relu") for batch in (16, 64, 256)),
    *(Setting(batch=batch, threads=2, activation="relu") for batch in (16, 64, 256)),
    *(
        setting
        for threads in (1, 2)
        for setting in (
            Setting(batch=64, networks=1, threads=threads),
            Setting(batch=256, networks=1, threads=threads),
            Setting(batch=256, networks=4, width=256, activation="relu", threads=threads),
            Setting(batch=1024, networks=2, width=256, activation="relu", threads=threads),
            Setting(batch=256, networks=2, width=1024, activation="relu", threads=threads, deepest=8),
        )
    ),
]


def measure(setting: Setting) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(0)
    task = Task(
        inputs=torch.randn(1024, 64, generator=generator),
        targets=torch.randint(10, (1024,), generator=generator),
        batches=torch.randint(1024, (STEPS, setting.batch), generator=generator),
        width=setting.width,
    )
    depths = range(2, setting.deepest + 1)
    nets = [
        Net(
            depth=depths[(7 * i) % len(depths)],
            gain=1.7,
            bias=0.05,
            rate=0.01,
            activation=setting.activation,
            seed=i,
        )
        for i in range(setting.networks)
    ]
    models = [build_alone(net, task) for net in nets]
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.01) for model in models]
    stacks = [
        stack_nets([nets[i] for i in mine], task)
        for mine in split_into_chunks(nets, default_chunk_size(task))
    ]
    loops = {
        f"loop, {threads}": partial(_loop, models, optimizers, task, threads)
        for threads in range(1, setting.threads + 1)
    }
    ways: dict[str, Callable[[], object]] = {**loops, "fleet": partial(_fleet, stacks, task, setting.threads)}
    clock = time.process_time if setting.threads == 1 else time.perf_counter
    rounds = ROUNDS if setting.networks > FEW else ROUNDS_OF_FEW
    seconds = alternate(ways, rounds=rounds, warmups=1, clock=clock)
    loop = min((seconds[name] for name in loops), key=statistics.median)
    return {
        "speedup": rounded(ratio(loop, seconds["fleet"])),
        "loop_ms_per_step": significant(1e3 * spread(loop).median / STEPS, 3),
        "batch": setting.batch,
        "threads": setting.threads,
        "goal": GOALS.get((setting.batch, setting.threads)) if setting.networks == 256 else 1.0,
    }


def _loop(
    models: list[nn.Sequential], optimizers: list[torch.optim.Optimizer], task: Task, threads: int
) -> None:
    torch.set_num_threads(threads)
    with flush_denormals():
        for model, optimizer in zip(models, optimizers, strict=True):
            for batch in task.batches:
                loss = F.cross_entropy(model(task.inputs[batch]), task.targets[batch])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()


def _fleet(stacks: list[StackedNets], task: Task, threads: int) -> None:
    torch.set_num_threads(threads)
    for _ in run_on_threads([partial(_steps, stack, task) for stack in stacks]):
        pass


@torch.no_grad()
def _steps(stack: StackedNets, task: Task) -> None:
    with flush_denormals():
        for batch in task.batches:
            step(stack, task.inputs[batch], task.targets[batch])


def render(results: Results) -> str:
    rows = []
    for name, found in ((each.name, results["cases"].get(each.name)) for each in SETTINGS):
        if found is None:
            continue
        speed, goal = found["speedup"], found["goal"]
        interval = f"{speed['low']:.2f} to {speed['high']:.2f}"
        rows.append([name, f"{speed['median']:.2f}", interval, _judged(speed, goal)])
    return table(["networks", "times as fast as the loop", "middle half of the rounds", "goal"], rows)


def _judged(speed: dict[str, float], goal: float | None) -> str:
    """Return the goal and whether it was met. A goal of 1 ("not slower") is missed if the middle half says so."""
    if goal is None:
        return ""
    if goal == 1 and speed["low"] <= 1 <= speed["high"]:
        return "1 (level)"
    return f"{goal:g}" if speed["median"] >= goal else f"{goal:g} (missed)"


def main() -> None:
    cases = {setting.name: partial(measure, setting) for setting in SETTINGS}
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("numbers", nargs="*", type=int, help="only these cases, from 0")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--table", action="store_true")
    asked = parser.parse_args()
    if asked.list:
        print("\n".join(f"{at} {name}" for at, name in enumerate(cases)))
        return
    if not asked.table:
        names = [list(cases)[at] for at in asked.numbers] or list(cases)
        run_missing("fleet", {name: cases[name] for name in names}, print)
    path = ROOT / "docs" / "lab-notes" / "phase.md"
    if path.exists():
        fill_file(path, "fleet", render(load("fleet")))


if __name__ == "__main__":
    main()
