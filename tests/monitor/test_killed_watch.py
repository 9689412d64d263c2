"""What a watched process that is killed or forked leaves in its run file."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from pathlib import Path

import pytest
import torch
from torch import nn

import leadline
from benchmarks.watch_sigkill import lost_by_kill
from leadline.monitor.budget import MAX_HOLD_SECONDS
from leadline.monitor.runfile import Run
from leadline.monitor.runfile.write import MAX_PAUSE_SECONDS

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")

# Derived: the quarter of a second that the documentation states, the pause of the writing thread of 10 ms, and ten
# switches of the interpreter's lock of 5 ms each.
MAX_LOST_SECONDS = MAX_HOLD_SECONDS + MAX_PAUSE_SECONDS + 0.05


@pytest.mark.parametrize("after", [0.0, 0.3])
def test_a_kill_loses_at_most_what_may_wait_for_the_writing_thread(tmp_path: Path, after: float):
    lost = lost_by_kill(tmp_path / "run.leadline", 0.0, after)
    assert lost.processor_seconds <= MAX_LOST_SECONDS


@pytest.mark.parametrize("run", range(3))
def test_a_kill_right_after_the_first_step_leaves_that_step(tmp_path: Path, run: int):
    path = tmp_path / "run.leadline"
    lost_by_kill(path, 60.0, 0.0)
    with Run(path) as stored:
        assert stored.steps == [0]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_no_kill_at_a_random_moment_loses_more(tmp_path: Path):
    moments = random.Random(0)
    for number in range(40):
        pause = moments.choice([0.0, 0.0005, 0.002])
        lost = lost_by_kill(tmp_path / f"{number}.leadline", pause, moments.uniform(0.0, 0.5))
        assert lost.processor_seconds <= MAX_LOST_SECONDS, (number, pause, lost)


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + 60
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.0002)


def _open_and_wait(path: Path, pipe: int) -> None:
    """Open a run file and say so, as a training that has not made its first step."""
    model = nn.Linear(2, 1)
    os.write(pipe, b".")
    leadline.watch(model, torch.optim.SGD(model.parameters(), lr=0.1), store=path)
    time.sleep(60)


@pytest.mark.parametrize("after", [0.0, 0.001, 0.004, None])
def test_a_run_file_is_never_left_empty(tmp_path: Path, after: float | None):
    """None waits until the file is there, so that at least this case reads one."""
    path = tmp_path / "run.leadline"
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        _open_and_wait(path, writing)
        os._exit(0)
    os.read(reading, 1)
    if after is None:
        wait_for(path)
    else:
        time.sleep(after)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    if after is None or path.exists():
        with Run(path) as run:
            assert run.info.model == "Linear"
    os.close(reading)
    os.close(writing)


def test_a_child_of_a_fork_leaves_the_run_file_to_its_parent(tmp_path: Path):
    path = tmp_path / "run.leadline"
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    watch = leadline.watch(model, optimizer, store=path)

    def train(steps: int) -> None:
        for _ in range(steps):
            optimizer.zero_grad()
            watch.loss(model(torch.ones(2, 4)).square().mean()).backward()
            optimizer.step()

    train(10)
    child = os.fork()
    if child == 0:
        train(10)
        os._exit(0 if watch.trouble and not sys.exc_info()[0] else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    train(10)
    watch.close()
    with Run(path) as run:
        assert run.scalars("loss")[0] == list(range(20))
        assert run.state == "ended"
