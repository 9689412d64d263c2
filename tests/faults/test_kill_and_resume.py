"""A watched training that is killed again and again, and resumed each time: its file stays sound and goes on."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from leadline.errors import LeadlineError
from leadline.monitor.past_run import judge_run
from leadline.monitor.runfile import Run
from leadline.records.report import Report

ROUNDS = 12

TRAINING = """
import sys, torch
from torch import nn
import leadline

torch.set_num_threads(1)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
x = torch.randn(16, 4)
with leadline.watch(model, optimizer, every=5, store=sys.argv[1]) as watch:
    for _ in range(int(sys.argv[2])):
        number = watch.step
        loss = watch.loss(model(x).square().mean() * 0 + number)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(number, flush=True)
"""


def trained(path: Path, steps: int, *, kill_after: float | None) -> list[int]:
    """The steps that the training printed; it is killed `kill_after` seconds after the first one."""
    command = [sys.executable, "-c", TRAINING, str(path), str(steps)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        first = child.stdout.readline()
        if kill_after is not None:
            time.sleep(kill_after)
            child.kill()
        lines = (first + child.stdout.read()).split("\n")[:-1]
        errors = child.stderr.read()
    assert lines, errors
    return [int(line) for line in lines if line.isdigit()]


def problems_of(path: Path) -> list[str]:
    with Run(path) as run:
        if "loss" not in run.scalar_names:
            return []
        steps, losses = run.scalars("loss")
        found = [f"loss at {step}" for step, loss in zip(steps, losses, strict=True) if loss != step]
        found += (
            []
            if steps == list(range(len(steps)))
            else [f"steps {steps[:5]} to {steps[-5:]}, {len(steps)} of them"]
        )
        for step in run.reports:
            Report.from_json(run.report(step))
        run.alerts(), run.events(), judge_run(run)
    return found


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_watched_training_survives_many_kills_and_goes_on_each_time(tmp_path):
    path, moments = tmp_path / "run.leadline", random.Random(2)
    done, troubles = threading.Event(), []

    def look() -> None:
        """Somebody reads all the time."""
        while not done.is_set():
            try:
                if path.exists():
                    with Run(path) as run:
                        run.since(0)
            except LeadlineError as error:
                if "is empty" not in str(error):
                    troubles.append(str(error))
            time.sleep(0.05)

    reader = threading.Thread(target=look)
    reader.start()
    lost = []
    try:
        for _ in range(ROUNDS):
            steps = trained(path, 10**6, kill_after=moments.uniform(0.0, 1.0))
            assert problems_of(path) == []
            with Run(path) as run:
                lost.append(steps[-1] - max(run.steps, default=-1))
                assert run.state == "broken off"
    finally:
        done.set()
        reader.join()
    assert troubles == []
    trained(path, 3, kill_after=None)
    with Run(path) as run:
        assert run.state == "ended"
        assert sum(event.kind == "resume" for event in run.events()) >= ROUNDS // 2


def test_a_file_with_a_gap_would_be_seen(tmp_path):
    from leadline.monitor.runfile import Writer
    from leadline.records.run import RunInfo

    with Writer(tmp_path / "a.leadline", RunInfo(model="Net", parameters=1)) as writer:
        writer.put(0, {"loss": 0.0})
        writer.put(2, {"loss": 7.0})
    assert problems_of(tmp_path / "a.leadline") == ["loss at 2", "steps [0, 2] to [0, 2], 2 of them"]
