r"""The truth about a problem: train it, and say what happened. Nothing here looks at a verdict.

Progress of a run is
$$ p = \frac{L_{\mathrm{trivial}} - L}{L_{\mathrm{trivial}} - L_{\mathrm{fitted}}} $$
with $L$ the lowest mean of `WINDOW` consecutive training losses, $L_{\mathrm{trivial}}$ the loss of the best constant
prediction and $L_{\mathrm{fitted}}$ what a healthy small model reaches in the budget; both belong to the data alone.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

import torch

from benchmarks.verdicts.case_builder import build, loss, problem_batches
from benchmarks.verdicts.cases import Label, Labeled
from benchmarks.verdicts.data import Task, task
from benchmarks.verdicts.problem import Problem

WINDOW = 10  # steps a loss is averaged over, so that one lucky batch is not progress
TARGET = (
    0.5  # progress that counts as having learned: half-way from knowing nothing to what a healthy model knows
)
MARGIN = 0.15  # progress within this of the target is neither: another order of batches could turn it
STARTED = 0.05  # a run that has made this much progress, but too little, is given more time
PATIENCE = (
    3  # budgets it is given in all: what the target takes between one and three of them is a matter of budget
)
BLOWN_UP = (
    2.0  # a last loss above this many times the first (and the trivial) one: the run went the wrong way
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One training run: its losses, step by step."""

    losses: tuple[float, ...]

    def first(self, steps: int) -> Run:
        """The run as it stood after so many steps."""
        return Run(losses=self.losses[:steps])

    def windows(self) -> list[float]:
        """Means of WINDOW consecutive losses; those that hold a non-finite one are infinite."""
        means = [sum(self.losses[i : i + WINDOW]) / WINDOW for i in range(len(self.losses) - WINDOW + 1)]
        return [mean if math.isfinite(mean) else math.inf for mean in means] or [math.inf]

    def progress(self, data: Task) -> float:
        """The best share of the way from the trivial loss to the fitted one."""
        return (data.trivial - min(self.windows())) / (data.trivial - data.fitted)

    def diverged(self, data: Task) -> bool:
        """It ended in something that is no number, or far above where it began."""
        worst = BLOWN_UP * max(self.losses[0], data.trivial)
        return not math.isfinite(self.losses[-1]) or self.windows()[-1] > worst


def label(run: Run, data: Task, steps: int) -> Label:
    """What happened in a budget of `steps`: reached the target, went wrong, did not learn, or too close to call."""
    within = run.first(steps)
    if within.progress(data) >= TARGET + MARGIN:
        return "reached"
    if within.diverged(data):
        return "diverged"
    close = within.progress(data) > TARGET - MARGIN
    return "borderline" if close or run.progress(data) >= TARGET else "stuck"


def train(problem: Problem, *, stop: bool = True) -> Run:
    """Train for the budget, or longer where that could change the label; with `stop`, no longer than it takes."""
    data, case = task(problem.data), build(problem)
    assert case.optimizer is not None
    losses: list[float] = []
    for inputs, targets in problem_batches(problem):
        now = loss(case.model(inputs), targets)
        losses.append(now.item())
        if _settled(losses, data, problem.steps, stop=stop):
            return Run(losses=tuple(losses))
        case.optimizer.zero_grad()
        now.backward()
        case.optimizer.step()
    raise AssertionError("batches never end")


def _settled(losses: list[float], data: Task, steps: int, *, stop: bool) -> bool:
    """No further step can change the label."""
    if not math.isfinite(losses[-1]):
        return True
    if not stop:
        return len(losses) >= steps
    enough = TARGET if len(losses) > steps else TARGET + MARGIN
    if Run(losses=tuple(losses[-WINDOW:])).progress(data) >= enough or len(losses) >= PATIENCE * steps:
        return True
    return len(losses) == steps and not _needs_time(Run(losses=tuple(losses)), data)


def _needs_time(run: Run, data: Task) -> bool:
    """It has begun to learn, and may make the target yet."""
    return not run.diverged(data) and STARTED <= run.progress(data) <= TARGET - MARGIN


def find_truth(problem: Problem) -> Labeled:
    """The label of a problem with the numbers behind it."""
    began, data = time.process_time(), task(problem.data)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        run = train(problem)
    return Labeled(
        problem=problem,
        label=label(run, data, problem.steps),
        progress=_number(run.first(problem.steps).progress(data)),
        final_progress=_number(run.progress(data)),
        first_loss=_number(run.losses[0]),
        last_loss=_number(run.windows()[-1]),
        steps=len(run.losses),
        seconds=round(time.process_time() - began, 2),
    )


def _number(value: float) -> float | None:
    """Four figures; None where it is not a finite number."""
    return float(f"{value:.4g}") if math.isfinite(value) else None
