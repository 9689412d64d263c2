"""Run an application: check, repair, train both versions, and compare the task's own score."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

import leadline
from examples.incidents.incident import first_proposal, train
from leadline.fixes._engine.verify import make_context


@dataclass(frozen=True, slots=True, kw_only=True)
class Application:
    """A problem with a network that fails on it. `build` returns the same case each time it is called."""

    build: Callable[[], leadline.Case]
    score: Callable[[nn.Module], float]
    """Measured on data or episodes that were not trained on; larger is better."""
    unit: str
    fix: str
    """The fix whose first proposal is applied, without a proof, in quick mode."""
    steps: int = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplicationResult:
    """Verdict and repair of an application, and the loss and score without and with the repair."""

    verdict: str
    found: tuple[str, ...]
    """Code and name of every finding before the repair."""
    repair: tuple[str, ...]
    loss: tuple[float, float]
    """Mean over the last quarter of the steps, without and with the repair."""
    score: tuple[float, float]


def run_application(
    application: Application, *, quick: bool = False, steps: int | None = None
) -> ApplicationResult:
    """Check the application, repair it, and train it with and without the repair."""
    context = make_context(application.build())
    recipe, repair = _repair(application) if not quick else first_proposal(context, application.fix)[:2]
    before, after = application.build(), application.build()
    leadline.apply(after.model, recipe, after.optimizer)
    losses = [train(case, steps or application.steps) for case in (before, after)]
    return ApplicationResult(
        verdict=context.report.verdict,
        found=tuple(f"{each.code} {each.name}" for each in context.report.findings),
        repair=repair,
        loss=(losses[0], losses[1]),
        score=(_score(application, before.model), _score(application, after.model)),
    )


def _repair(application: Application) -> tuple[leadline.Recipe, tuple[str, ...]]:
    """Return the repair that `leadline.fix` found and proved."""
    repair = leadline.fix(application.build())
    return repair.recipe, tuple(f"{each.fix}: {each.title}" for each in repair.outcomes if each.kept)


def _score(application: Application, model: nn.Module) -> float:
    model.eval()
    with torch.no_grad():
        return application.score(model)


def main(application: Application) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "--quick", action="store_true", help="apply the edits of one fix without proving them"
    )
    torch.set_num_threads(1)
    result = run_application(application, quick=parser.parse_args().quick)
    print(f"check   {result.verdict}: {', '.join(result.found) or 'nothing found'}")
    print(f"repair  {'; '.join(result.repair) or 'none found'}")
    print(f"loss    {result.loss[0]:.3f} before, {result.loss[1]:.3f} after")
    print(f"score   {result.score[0]:.3g} before, {result.score[1]:.3g} after ({application.unit})")
