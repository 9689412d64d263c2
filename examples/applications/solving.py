"""Run an application: check, repair, train both versions, and compare the task's own score."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

import leadline
from examples.incidents.telling import proposed, train
from leadline.fixes._engine.verify import make_context


@dataclass(frozen=True, slots=True, kw_only=True)
class Application:
    """A problem with a network that fails on it. `build` returns the same case each time it is called."""

    build: Callable[[], leadline.Case]
    score: Callable[[nn.Module], float]
    """On data, or episodes, that were not trained on; larger is better."""
    unit: str
    fix: str
    """The fix that is made unproved in quick mode."""
    steps: int = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Solution:
    verdict: str
    found: tuple[str, ...]
    repair: tuple[str, ...]
    loss: tuple[float, float]
    """Before and after the repair, over the last quarter of the steps."""
    score: tuple[float, float]


def solve(application: Application, *, quick: bool = False, steps: int | None = None) -> Solution:
    context = make_context(application.build())
    recipe, repair = _repair(application) if not quick else proposed(context, application.fix)[:2]
    before, after = application.build(), application.build()
    leadline.apply(after.model, recipe, after.optimizer)
    losses = [train(case, steps or application.steps) for case in (before, after)]
    return Solution(
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
    parser.add_argument("--quick", action="store_true", help="make the edits of one fix without prover them")
    torch.set_num_threads(1)
    found = solve(application, quick=parser.parse_args().quick)
    print(f"check   {found.verdict}: {', '.join(found.found) or 'nothing found'}")
    print(f"repair  {'; '.join(found.repair) or 'none found'}")
    print(f"loss    {found.loss[0]:.3f} before, {found.loss[1]:.3f} after")
    print(f"score   {found.score[0]:.3g} before, {found.score[1]:.3g} after ({application.unit})")
