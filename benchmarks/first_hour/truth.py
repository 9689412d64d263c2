"""The outcome of each variant, found by training it; nothing here knows about verdicts."""

from __future__ import annotations

import math
import statistics
from itertools import islice
from typing import Any, Literal

import torch

from benchmarks.first_hour.text import corpus
from benchmarks.first_hour.variants import VARIANTS, Program, Variant

STEPS = 300
SEEDS = (0, 1, 2)
BASELINE_STEPS = 11
# Heuristic: enough to see two curves part; both ways must agree at every step.
SAME_CURVE_STEPS = 8
# Heuristic: rounding differs between the two ways, and chaotic runs amplify it.
MAX_CURVE_DIFFERENCE = 1e-3
# Heuristic: halfway from the constant prediction to the unmodified network, as in benchmarks/verdicts.
MIN_TRAINS_SHARE = 0.5
# Heuristic: below this, what was learned is little more than the frequencies of characters.
MIN_POOR_SHARE = 0.2
# Heuristic: the naive baseline wants a fall that is more than noise.
MIN_BASELINE_FALL = 0.05

Outcome = Literal["trains", "poor", "fails"]
Truth = dict[str, Any]
"""What is stored for a variant: held-out losses by seed, eleven losses on one batch, and whether both ways agree."""


Job = tuple[str, str]
"""The name of a variant, and FACTS or a seed."""
FACTS = "facts"


def run_job(job: Job) -> tuple[Job, Any]:
    """Run one part of the measurement, in a process of its own."""
    name, part = job
    variant = VARIANTS[name]
    return job, naive_facts(variant) if part == FACTS else train(variant, int(part))


def naive_facts(variant: Variant) -> Truth:
    """Return what the naive baselines see, and whether both ways of passing the loss train alike."""
    losses = [_number(loss) for loss in one_batch_losses(variant)]
    return {"one_batch": losses, "same_curve": same_curve(variant)}


def train(variant: Variant, seed: int) -> float | None:
    """Train on fresh batches; return the loss on clean held-out text, None if it is non-finite."""
    program = variant.program(seed, inside=True)
    for group in program.optimizer.param_groups:
        if "foreach" in group:
            group["foreach"] = True  # the same numbers in fewer calls
    for batch in islice(program.batches(), STEPS):
        if not _step(program, batch):
            return None
    program.model.eval()
    with torch.no_grad():
        return _number(program.loss(corpus().held_out_batch()).item())


def one_batch_losses(variant: Variant) -> list[float]:
    """Return the losses before and after each of eleven steps on the first batch."""
    program = variant.program(0, inside=True)
    batch = next(program.batches())
    losses = []
    for _ in range(BASELINE_STEPS):
        losses.append(program.loss(batch).item())
        _step(program, batch)
    return [*losses, program.loss(batch).item()]


def same_curve(variant: Variant) -> bool:
    """Return whether training with the loss inside and outside of the model gives the same losses."""
    curves = []
    for inside in (True, False):
        program = variant.program(0, inside=inside)
        losses = []
        for batch in islice(program.batches(), SAME_CURVE_STEPS):
            torch.manual_seed(len(losses))
            losses.append(program.loss(batch).item())
            _step(program, batch)
        curves.append(losses)
    return all(_equal(a, b) for a, b in zip(*curves, strict=True))


def _step(program: Program, batch: tuple[torch.Tensor, torch.Tensor]) -> bool:
    """Make one step; return whether the loss was finite."""
    loss = program.loss(batch)
    program.optimizer.zero_grad()
    loss.backward()
    program.optimizer.step()
    if program.schedule is not None:
        program.schedule.step()
    return math.isfinite(loss.item())


def _equal(a: float, b: float) -> bool:
    if not (math.isfinite(a) and math.isfinite(b)):
        return math.isfinite(a) == math.isfinite(b)
    return abs(a - b) <= MAX_CURVE_DIFFERENCE * max(abs(a), abs(b))


def _number(value: float) -> float | None:
    return float(f"{value:.5g}") if math.isfinite(value) else None


def shares(truth: Truth, base: Truth, unigram: float) -> list[float]:
    """Return for each seed the part of the gain of "base" that was recovered; minus infinity if it diverged."""
    gain = unigram - statistics.mean(base["held_out"].values())
    losses = truth["held_out"].values()
    return [-math.inf if loss is None else (unigram - loss) / gain for loss in losses]


def outcome(share: float) -> Outcome:
    if share >= MIN_TRAINS_SHARE:
        return "trains"
    return "poor" if share >= MIN_POOR_SHARE else "fails"


def unanimous(shares_by_seed: list[float]) -> bool:
    """Return whether the seeds agree on whether it trains."""
    return len({outcome(share) == "trains" for share in shares_by_seed}) == 1


def majority(shares_by_seed: list[float]) -> Outcome:
    return outcome(statistics.median(shares_by_seed))


def baseline_trains(truth: Truth, min_fall: float) -> bool:
    """Return whether eleven steps on one batch lowered the loss by more than the share `min_fall`."""
    losses = truth.get("one_batch", [None])
    first, last = losses[0], losses[-1]
    return first is not None and last is not None and last < (1 - min_fall) * first
