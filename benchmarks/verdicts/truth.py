r"""Labels a problem by training it, independently of any verdict.

Progress of a run is
$$ p = \frac{L_{\mathrm{trivial}} - L}{L_{\mathrm{trivial}} - L_{\mathrm{fitted}}} $$
with $L$ the lowest mean of `WINDOW` consecutive training losses, $L_{\mathrm{trivial}}$ the loss of the best constant
prediction and $L_{\mathrm{fitted}}$ the loss that a healthy small model reaches in the budget. Both depend only on the
data.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

import torch

from benchmarks.verdicts.case_builder import build, loss, problem_batches
from benchmarks.verdicts.cases import Label, LabeledProblem
from benchmarks.verdicts.data import Task, task
from benchmarks.verdicts.problem import Problem

# Heuristic: losses are averaged over this many steps, so that one easy batch does not count as progress.
WINDOW = 10
# Heuristic: a run has learned if it gets halfway from the trivial loss to that of a healthy model.
TARGET = 0.5
# Heuristic: closer to the target than this, another order of the batches could change the label.
MARGIN = 0.15
# Heuristic: a run with at least this much progress has started to learn and gets more time.
MIN_STARTED_PROGRESS = 0.05
# Heuristic: a run that needs between one and three budgets is borderline, not stuck.
MAX_BUDGETS = 3
# Heuristic: a run diverged if its last loss is above this multiple of the first and the trivial loss.
DIVERGED_LOSS_RATIO = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One training run: its losses, step by step."""

    losses: tuple[float, ...]

    def first(self, steps: int) -> Run:
        """Return the first `steps` steps of the run."""
        return Run(losses=self.losses[:steps])

    def windows(self) -> list[float]:
        """Return the means of WINDOW consecutive losses, infinite if one of them is non-finite."""
        means = [sum(self.losses[i : i + WINDOW]) / WINDOW for i in range(len(self.losses) - WINDOW + 1)]
        return [mean if math.isfinite(mean) else math.inf for mean in means] or [math.inf]

    def progress(self, data: Task) -> float:
        """Return the best progress from the trivial loss (0) to the fitted loss (1)."""
        return (data.trivial - min(self.windows())) / (data.trivial - data.fitted)

    def diverged(self, data: Task) -> bool:
        """Return whether the run ended non-finite or far above its first loss."""
        worst = DIVERGED_LOSS_RATIO * max(self.losses[0], data.trivial)
        return not math.isfinite(self.losses[-1]) or self.windows()[-1] > worst


def label(run: Run, data: Task, steps: int) -> Label:
    """Return the outcome within a budget of `steps`: reached, diverged, stuck or borderline."""
    within = run.first(steps)
    if within.progress(data) >= TARGET + MARGIN:
        return "reached"
    if within.diverged(data):
        return "diverged"
    close = within.progress(data) > TARGET - MARGIN
    return "borderline" if close or run.progress(data) >= TARGET else "stuck"


def train(problem: Problem, *, stop: bool = True) -> Run:
    """Train for the budget, or longer if that can change the label; with `stop`, end as soon as it is certain."""
    data, case = task(problem.data), build(problem)
    assert case.optimizer is not None
    losses: list[float] = []
    for inputs, targets in problem_batches(problem):
        step_loss = loss(case.model(inputs), targets)
        losses.append(step_loss.item())
        if _settled(losses, data, problem.steps, stop=stop):
            return Run(losses=tuple(losses))
        case.optimizer.zero_grad()
        step_loss.backward()
        case.optimizer.step()
    raise AssertionError("batches never end")


def _settled(losses: list[float], data: Task, steps: int, *, stop: bool) -> bool:
    """Return whether no further step can change the label."""
    if not math.isfinite(losses[-1]):
        return True
    if not stop:
        return len(losses) >= steps
    enough = TARGET if len(losses) > steps else TARGET + MARGIN
    if Run(losses=tuple(losses[-WINDOW:])).progress(data) >= enough or len(losses) >= MAX_BUDGETS * steps:
        return True
    return len(losses) == steps and not _needs_time(Run(losses=tuple(losses)), data)


def _needs_time(run: Run, data: Task) -> bool:
    """Return whether the run has started to learn and may still reach the target."""
    return not run.diverged(data) and MIN_STARTED_PROGRESS <= run.progress(data) <= TARGET - MARGIN


def find_truth(problem: Problem) -> LabeledProblem:
    """Train a problem; return its label with the measured progress and losses."""
    began, data = time.process_time(), task(problem.data)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        run = train(problem)
    return LabeledProblem(
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
    """Return the value with four digits, or None if it is non-finite."""
    return float(f"{value:.4g}") if math.isfinite(value) else None
