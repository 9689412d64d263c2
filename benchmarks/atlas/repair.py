"""Whether `leadline fix` makes the failing problems of the atlas train, and leaves healthy ones alone."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

import leadline
from benchmarks.atlas.problem import Setup
from benchmarks.atlas.problems import Problem
from benchmarks.atlas.truth import outcome_of_setup
from leadline.fixes._engine.edits import EditSession, apply_edits

BUDGET = 45.0
"""Seconds of processor time of one search."""
BATCHES = 48
"""Batches that a user passes; more than one trial has steps, so that they are fresh."""


def repair(problem: Problem) -> dict[str, Any]:
    """Search for a repair, apply it to the problem built anew, and train that like the truth."""
    began = time.process_time()
    try:
        found = leadline.fix(problem.setup(0).case(batches=BATCHES), budget=BUDGET)
    except (leadline.LeadlineError, RuntimeError, ValueError) as error:
        return {"error": str(error)[:300]}
    kept = [each for each in found.outcomes if each.kept]
    answer: dict[str, Any] = {
        "verdict": found.verdict_before,
        "fixes": [each.fix for each in kept],
        "titles": [each.title for each in kept],
        "tried": len(found.outcomes),
        "advice": [each.fix for each in found.outcomes if each.reach == "advice"],
        "seconds": round(time.process_time() - began, 1),
    }
    if found.recipe.edits:
        answer["outcome"] = outcome_of_setup(_edited(problem, found.recipe.edits), 0)
    return answer


def _edited(problem: Problem, edits: Iterable[Any]) -> Setup:
    """The problem with the edits; its optimizer is built once, because edits change it too."""
    setup = problem.setup(0)
    optimizer = setup.recipe.build(setup.model)
    apply_edits(EditSession(model=setup.model, optimizer=optimizer), edits)
    setup.optimizer = optimizer
    return setup
