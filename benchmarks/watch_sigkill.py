"""Measure what SIGKILL loses of a watched loop: the last completed step minus the last step in its run file.

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
from pathlib import Path
from typing import Any

import torch
from torch import nn

from leadline.api import watch
from leadline.monitor.runfile import Run

STEP = struct.Struct("q")


def train_until_killed(path: Path, pause: float, pipe: int) -> None:
    """Train under a watch with the default budget, and write each completed step to the file descriptor `pipe`."""
    model = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    watched = watch(model, optimizer, store=path)
    while True:
        watched.loss(model(torch.ones(4, 16)).square().mean()).backward()
        optimizer.step()
        optimizer.zero_grad()
        os.write(pipe, STEP.pack(watched.step - 1))
        time.sleep(pause)


def steps_lost(path: Path, pause: float, after: float) -> int:
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
    (last_step,) = STEP.unpack(output[-STEP.size :])
    with Run(path) as run:
        return int(max(0, last_step - max(run.steps, default=-1)))


def measure(pause: float, kills: int) -> dict[str, Any]:
    torch.set_num_threads(1)
    rng = random.Random(0)
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder, f"{number}.leadline") for number in range(kills)]
        lost = [steps_lost(path, pause, rng.uniform(0.5, 1.5)) for path in paths]
    return {"kills": kills, "median": statistics.median(lost), "most": max(lost)}
