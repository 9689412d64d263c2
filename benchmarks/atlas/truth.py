"""What becomes of a problem: it is trained, and its score is compared with that of the healthy network."""

from __future__ import annotations

import math
from typing import Any, Literal

import torch

from benchmarks.atlas.problem import Batch, Setup, constant_score, score
from benchmarks.atlas.problems import Problem

Outcome = Literal["reaches", "fails", "borderline"]

SEEDS = (0, 1)
MIN_REACHED, MAX_FAILED = 0.6, 0.4
EVALUATION_BATCHES = 8
NAIVE_STEPS = 11


def train(setup: Setup, seed: int) -> tuple[float, list[float]]:
    """Train on fresh batches; return the score afterwards and some losses on the way."""
    generator = torch.Generator().manual_seed(seed)
    optimizer = setup.optimizer or setup.recipe.build(setup.model)
    setup.model.train()
    losses = []
    for _ in range(setup.steps):
        optimizer.zero_grad()
        loss = setup.loss_of(setup.draw(generator))
        losses.append(loss.item())
        if not math.isfinite(losses[-1]):
            return -math.inf, losses
        if not loss.requires_grad:
            break
        loss.backward()
        optimizer.step()
    return score(setup, held_out(setup)), losses


def held_out(setup: Setup) -> list[Batch]:
    generator = torch.Generator().manual_seed(10_000)
    return [setup.draw(generator) for _ in range(EVALUATION_BATCHES)]


def outcome_of(problem: Problem, seed: int) -> dict[str, Any]:
    """Train once; the score before and after, that of a constant, and the losses at some steps."""
    return outcome_of_setup(problem.setup(seed), seed)


def outcome_of_setup(setup: Setup, seed: int) -> dict[str, Any]:
    before = score(setup, held_out(setup))
    constant = constant_score(setup, held_out(setup))
    after, losses = train(setup, seed)
    shown = [0, 10, 30, 100, 200, len(losses) - 1]
    return {
        "score": _finite(after),
        "before": _finite(before),
        "constant": _finite(constant),
        "losses": [_finite(losses[i]) for i in shown if i < len(losses)],
    }


def naive_facts(problem: Problem) -> dict[str, Any]:
    """What two naive judges see: the fall of the loss in a few steps, on one batch and on fresh ones."""
    facts = {}
    for name, is_same in (("one_batch", True), ("fresh", False)):
        setup = problem.setup(0)
        generator = torch.Generator().manual_seed(1000)
        optimizer, batch = setup.recipe.build(setup.model), setup.draw(generator)
        losses = []
        for _ in range(NAIVE_STEPS + 1):
            loss = setup.loss_of(batch)
            losses.append(loss.item())
            if not math.isfinite(losses[-1]) or not loss.requires_grad:
                break
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            batch = batch if is_same else setup.draw(generator)
        first, last = losses[0], losses[-1]
        facts[name] = _finite((first - last) / abs(first)) if first else 0.0
    return facts


def progress(outcome: dict[str, Any], healthy: dict[str, Any]) -> float:
    """The part of the healthy network's gain over a constant that the problem recovers."""
    constant, reference = healthy["constant"], healthy["score"]
    if outcome["score"] is None or reference is None or reference <= constant:
        return -math.inf
    return (outcome["score"] - constant) / (reference - constant)


def judge(shares: list[float]) -> Outcome:
    if min(shares) >= MIN_REACHED:
        return "reaches"
    return "fails" if max(shares) < MAX_FAILED else "borderline"


def _finite(value: float) -> float | None:
    return round(value, 5) if math.isfinite(value) else None
