"""A run file survives kill -9: at any moment of a real process, as often as it comes."""

from __future__ import annotations

import math
import random
import subprocess
import sys
import time
from array import array
from pathlib import Path

import pytest

from leadline.monitor.runfile import Run, Writer
from leadline.monitor.runfile.write import MAX_PAUSE_SECONDS
from leadline.records.run import RunInfo

INFO = RunInfo(model="Net", parameters=10)
LAYERS = 200

CHILD = f"""
import sys, time
from array import array
from leadline.records.run import RunInfo
from leadline.monitor.runfile import Writer

path, pause, flushing = sys.argv[1], float(sys.argv[2]), sys.argv[3] == "True"
writer = Writer(path, RunInfo(model="Net", parameters=10))
writer.axis("blocks", [str(i) for i in range({LAYERS})])
step = -1 if writer.last_step is None else writer.last_step
while True:
    step += 1
    writer.put(step, {{"loss": step + 0.5}}, {{"grad_norm": ("blocks", array("f", [step] * {LAYERS}))}})
    if flushing:
        writer.flush()
    sys.stdout.write(f"{{step}}\\n")
    sys.stdout.flush()
    time.sleep(pause)
"""


def killed(path: Path, *, pause: float, after: float, flushing: bool) -> int:
    """Start a process that writes, kill it; the last step it had handed over."""
    command = [sys.executable, "-c", CHILD, str(path), str(pause), str(flushing)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        first = child.stdout.readline()
        time.sleep(after)
        child.kill()
        lines = (first + child.stdout.read()).split("\n")
    return int(lines[-2])  # after the last newline there may be half a number


def problems_of(path: Path) -> list[str]:
    """What is not as it was written: a step without its number or its vector, or with those of another."""
    with Run(path) as run:
        if not run.scalar_names:
            return []  # killed before the first step was stored
        steps, losses = run.scalars("loss")
        places, vectors = run.vectors("grad_norm")
        found = [] if run.steps == steps == places == list(range(len(steps))) else ["steps have gaps"]
        found += [f"loss at {s}" for s, loss in zip(steps, losses, strict=True) if loss != s + 0.5]
        wrong = (s for s, v in zip(places, vectors, strict=True) if v != array("f", [s] * LAYERS))
        return found + [f"vector at {s}" for s in wrong]


def kill_repeatedly(path: Path, *, times: int, pause: float, flushing: bool) -> list[int]:
    """Steps lost by each kill. The moments are random, the file stays the same: each start resumes the run."""
    moments = random.Random(times)
    lost = []
    for _ in range(times):
        last = killed(path, pause=pause, after=moments.uniform(0.0, 0.2), flushing=flushing)
        assert problems_of(path) == []
        with Run(path) as run:
            lost.append(max(last - max(run.steps, default=-1), 0))
    return lost


def test_a_kill_at_any_moment_loses_no_flushed_step(tmp_path):
    assert kill_repeatedly(tmp_path / "a.leadline", times=10, pause=0.0, flushing=True) == [0] * 10


def test_a_kill_loses_less_than_the_longest_pause(tmp_path):
    """`benchmarks/run_file_cost.py` measures how many steps it is in fact."""
    lost = kill_repeatedly(tmp_path / "a.leadline", times=10, pause=0.02, flushing=False)
    assert max(lost) <= 1 + math.ceil(MAX_PAUSE_SECONDS / 0.02)


@pytest.mark.slow
def test_sixty_kills_leave_an_intact_file(tmp_path):
    kill_repeatedly(tmp_path / "a.leadline", times=60, pause=0.01, flushing=False)


def test_a_file_that_lost_a_vector_is_caught(tmp_path):
    path = tmp_path / "a.leadline"
    with Writer(path, INFO) as writer:
        writer.put(0, {"loss": 0.5}, {"grad_norm": ("blocks", array("f", [0] * LAYERS))})
        writer.put(1, {"loss": 1.5}, {"grad_norm": ("blocks", array("f", [7] * LAYERS))})
        writer.put(2, {"loss": 2.5})
    assert problems_of(path) == ["steps have gaps", "vector at 1"]
