"""A training program in the shape of a public one: what must be said about it, and what was said."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn, optim

import leadline
from leadline.cli.check import check_past_run
from leadline.records import Alert
from leadline.records.report import Report

Expected = Literal["quiet", "alarm"]
Observation = dict[str, Any]
"""The verdict, the codes at warning or above, the first and last loss, or the error that ended it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingProgram:
    """One program. Healthy ones must get the verdict "trains" and no code; the others "poor" or "fails"."""

    name: str
    expected: Expected
    run: Callable[[], Observation]
    """Train or check as the program's author would, and return what was said."""
    round: Literal[1, 2] = 1
    """1: named by the first round of users; 2: chosen for the second."""

    def observe(self) -> Observation:
        """Run the program from a fixed seed; an exception is part of the observation."""
        torch.manual_seed(0)
        try:
            return self.run()
        except Exception as error:  # what a user would see as a traceback
            message = str(error).splitlines()
            return {"error": f"{type(error).__name__}: {message[0] if message else ''}"}


def is_right(expected: Expected, observation: Observation) -> bool:
    verdict = observation.get("verdict")
    if expected == "quiet":
        return verdict == "trains" and not observation["codes"]
    return verdict in ("poor", "fails")


def of_report(report: Report, losses: Sequence[float] = ()) -> Observation:
    """Return what a report says. `losses` are those of a training that shows whether the program learns."""
    codes = {finding.code for finding in report.findings if finding.severity != "info"}
    return {
        "verdict": report.verdict,
        "reason": report.reason,
        "codes": sorted(codes),
        "losses": _ends(losses),
    }


def of_watched_run(train: Callable[[Path], Sequence[Alert]]) -> Observation:
    """Train with a watch that writes a run file; return what was alerted and what `leadline check` says of the file."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.leadline"
        alerts = train(path)
        report = check_past_run(str(path), {})
    observation = of_report(report)
    alerted = {alert.code for alert in alerts if alert.severity != "info"}
    observation["codes"] = sorted({*observation["codes"], *alerted})
    if report.course is not None:
        first, last = report.course.first_loss, report.course.last_loss
        observation["losses"] = _ends([loss for loss in (first, last) if loss is not None])
    return observation


def of_loop(
    model: nn.Module,
    optimizers: Sequence[optim.Optimizer],
    step: Callable[[int], Tensor],
    steps: int,
) -> Observation:
    """Watch `steps` steps of a hand-written loop; `step` makes one and returns the loss that its author would log."""

    def train(path: Path) -> Sequence[Alert]:
        with leadline.watch(model, list(optimizers), store=path) as watch:
            for number in range(steps):
                watch.loss(step(number))
        return watch.alerts

    return of_watched_run(train)


def _ends(losses: Sequence[float]) -> list[float | None]:
    """Return the first and the last loss with three digits."""
    return [float(f"{loss:.3g}") if math.isfinite(loss) else None for loss in (*losses[:1], *losses[-1:])]
