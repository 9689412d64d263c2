"""Measure what SIGKILL loses of a watched loop: the steps after the last one in its run file, and their time.

The loop is forked from a process that has loaded everything, so a kill costs no start-up time.
benchmarks/run_file_cost.py runs it and fills the table.
"""

from __future__ import annotations

import os
import random
import signal
import statistics
import struct
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from leadline.api import watch
from leadline.monitor.runfile import Run

STEP = struct.Struct("qdd")
"""A completed step, the time when it ended, and the processor time of the process by then."""


def train_until_killed(path: Path, pause: float, pipe: int) -> None:
    """Train under a watch with the default budget, and write each completed step to the file descriptor `pipe`."""
    model = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    watched = watch(model, optimizer, store=path)
    while True:
        watched.loss(model(torch.ones(4, 16)).square().mean()).backward()
        optimizer.step()
        optimizer.zero_grad()
        os.write(pipe, STEP.pack(watched.step - 1, time.perf_counter(), time.process_time()))
        if pause:
            time.sleep(pause)


@dataclass(frozen=True, slots=True)
class Loss:
    """What a kill lost: the steps after the last stored one, and the time from its end to that of the last step."""

    steps: int
    seconds: float
    processor_seconds: float


def lost_by_kill(path: Path, pause: float, after: float) -> Loss:
    """Train in a forked process, kill it `after` seconds after its first step, and compare with its file."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        train_until_killed(path, pause, writing)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        output = pipe.read(STEP.size)  # the first step, which is traced, is complete
        time.sleep(after)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        output += pipe.read()
    rows = list(STEP.iter_unpack(output[: len(output) // STEP.size * STEP.size]))
    with Run(path) as run:
        stored = max(run.steps, default=-1)
    last_step, ended, busy = rows[-1]
    missing = [row for row in rows if row[0] > stored]
    if not missing:
        return Loss(0, 0.0, 0.0)
    return Loss(last_step - stored, ended - missing[0][1], busy - missing[0][2])


def measure(pause: float, kills: int) -> dict[str, Any]:
    torch.set_num_threads(1)
    rng = random.Random(0)
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder, f"{number}.leadline") for number in range(kills)]
        losses = [lost_by_kill(path, pause, rng.uniform(0.5, 1.5)) for path in paths]
    lost = [each.steps for each in losses]
    most_seconds = max(each.processor_seconds for each in losses)
    return {
        "kills": kills,
        "median": statistics.median(lost),
        "most": max(lost),
        "most_processor_seconds": most_seconds,
    }
