"""Whether a recorded run learned: from its losses alone, and in the report of a run file or a log."""

from __future__ import annotations

import math
import random
from pathlib import Path

import pytest
import torch
from torch import nn

import leadline
from leadline.monitor.learning import MIN_STEPS, MIN_STUCK_STEPS, judge_learning
from leadline.monitor.past_run import judge_run, judge_samples
from leadline.monitor.runfile.read import Run
from leadline.records.run import Sample


def course(steps: int, level, noise: float = 0.05, seed: int = 0) -> list[float]:
    draw = random.Random(seed)
    return [level(step) * math.exp(draw.gauss(0, noise)) for step in range(steps)]


def report_of(losses: list[float], first_step: int = 0, **others: list[float]):
    columns = {"loss": losses, **others}
    samples = [
        Sample(step=first_step + step, scalars={name: values[step] for name, values in columns.items()})
        for step in range(len(losses))
    ]
    return judge_samples(samples, "CSV file", "log.csv")


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("noise", [0.0, 0.02, 0.2])
def test_a_loss_that_halves_was_learned_at_any_noise(seed, noise):
    losses = course(300, lambda step: 1.2 + 1.1 * math.exp(-step / 60), noise, seed)
    assert judge_learning(losses).state == "learned"


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("noise", [0.0, 0.02, 0.1])
@pytest.mark.parametrize("steps", [MIN_STEPS, 200, 2000])
def test_a_loss_that_does_not_move_was_not_learned_and_did_not_rise(seed, noise, steps):
    state = judge_learning(course(steps, lambda step: 2.3, noise, seed)).state
    assert state in (("stuck", "noisy") if steps >= MIN_STUCK_STEPS else ("waiting", "noisy"))


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_the_unit_of_the_loss_changes_nothing(scale):
    for level in (lambda step: 2.3, lambda step: 2.3 - step / 300, lambda step: 2.3 + step / 300):
        losses = course(300, level)
        assert judge_learning([scale * each for each in losses]).state == judge_learning(losses).state


def test_a_loss_that_explodes_at_once_and_comes_back_in_part_rose():
    losses = [4.4, *course(300, lambda step: 7 + 50 * math.exp(-step / 20))]
    assert judge_learning(losses).state == "rose"


def test_a_flat_resumed_run_is_undecided_because_its_start_is_missing():
    flat = course(600, lambda step: 2.3)
    assert judge_learning(flat, is_resumed=True).state == "level"
    report = report_of(flat, first_step=5000)
    assert report.verdict != "trains"


def test_a_loss_around_zero_is_not_said_to_rise():
    draw = random.Random(0)
    assert judge_learning([draw.gauss(0, 1) for _ in range(500)]).state == "noisy"


def test_a_log_whose_loss_rose_fails_and_a_growing_gradient_names_zero_grad():
    losses = course(400, lambda step: 4.42 + 0.6 * step / 400, 0.01)
    norms = course(400, lambda step: 4.6 + 90 * step / 400)
    report = report_of(losses, grad_norm=norms)
    assert (report.verdict, report.findings[0].code) == ("fails", "T815")
    assert "zero_grad" in report.findings[0].action
    assert "zero_grad" not in report_of(losses).findings[0].action


def test_a_log_whose_loss_never_moved_fails_and_a_short_one_is_undecided_with_the_reason():
    long, short = course(600, lambda step: 2.31, 0.02), course(100, lambda step: 2.31, 0.02)
    assert report_of(long).verdict == "fails"
    assert report_of(short).verdict == "undecided"
    assert "hardly left its start, but the run is short" in report_of(short).reason


def test_a_run_without_a_traced_pass_says_so_beside_its_verdict():
    report = report_of(course(300, lambda step: 1.2 + 1.1 * math.exp(-step / 60)))
    assert report.verdict == "trains"
    assert "no pass was traced" in report.reason


def test_a_rate_that_destroys_the_network_is_alarmed_while_it_runs_and_fails_its_run_file(tmp_path: Path):
    """A classifier of noise at an Adam rate of 1.0: the loss jumps in the first step and stays above its start."""
    torch.manual_seed(0)
    model = nn.Linear(8, 20)
    optimizer = torch.optim.AdamW(model.parameters(), 1.0)
    with leadline.watch(model, optimizer, every=20, store=tmp_path / "run.leadline") as watch:
        for _ in range(80):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(torch.randn(32, 8)), torch.randint(0, 20, (32,)))
            watch.loss(loss).backward()
            optimizer.step()
    assert min(each.step for each in watch.alerts if each.code == "T815") < 50
    with Run(tmp_path / "run.leadline") as run:
        assert judge_run(run).verdict == "fails"
