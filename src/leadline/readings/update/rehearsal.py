"""Makes a few real steps until it is clear whether the network learns, and undoes them."""

from __future__ import annotations

import math
from itertools import islice
from typing import Any

from leadline.case import Case, split_batch
from leadline.ops.arguments import dropout_rate
from leadline.ops.table import RANDOM_OPS
from leadline.readings.update.constant import fitted_constant_loss, loss_terms, reference_losses
from leadline.readings.update.probe import StepProbe, open_probe
from leadline.records import Rehearsal, Trace
from leadline.records.update import (
    MAX_REHEARSAL_STEPS,
    MIN_FALLING_PROGRESS,
    MIN_STUCK_STEPS,
)
from leadline.tracer.restore import preserve_process_state

# Derived: with momentum 0.9 the steps have grown to 1 - 0.9^8 = 57 % of their final length by then.
MIN_REHEARSAL_STEPS = 8
# Heuristic: so few that each is seen twice before the earliest end of a rehearsal.
MAX_BATCHES = 4


def rehearse(case: Case, trace: Trace, *, steps: int = MAX_REHEARSAL_STEPS) -> Rehearsal:
    """Train on the batch, or on the first few in turn, for at most `steps` steps; stops once it is clear how they end.

    Every pass starts from the same buffers and random numbers, so only the parameters change between two steps on one
    batch. Only dropout draws its masks anew, as it does in training. `trace` is a trace of the case.
    """
    losses: list[float] = []
    has_fresh_masks = _draws_only_masks(trace)
    batches = _first_batches(case)
    with open_probe(case) as probe:
        evaluations = [_evaluation(probe, each) for each in batches]
        constant, floor = reference_losses(loss_terms(trace), evaluations)
        if constant is None and case.loss is not None:
            constant = fitted_constant_loss(case.loss, [(_output(probe, each), each[1]) for each in batches])
        starts = tuple(each() for each in evaluations) if len(batches) > 1 else ()
        for step in range(steps + 1):
            probe.batch = batches[step % len(batches)]
            probe.seed = step if has_fresh_masks else None
            if step == steps:
                losses.append(probe.evaluate()[0])
                break
            losses.append(probe.gradient()[0].item())
            if _is_decided(_rehearsal(losses, constant, floor, starts)):
                break
            probe.step(None)
    return _rehearsal(losses, constant, floor, starts)


def _rehearsal(
    losses: list[float], constant: float | None, floor: float, starts: tuple[float, ...]
) -> Rehearsal:
    return Rehearsal(losses=tuple(losses), constant=constant, floor=floor, starts=starts)


def _first_batches(case: Case) -> list[tuple[Any, Any]]:
    """Inputs and targets of the case, and of its first further batches."""
    with preserve_process_state():
        others = [split_batch(each, case) for each in islice(case.batches or (), MAX_BATCHES - 1)]
    return [(case.inputs, case.targets), *others]


def _evaluation(probe: StepProbe, batch: tuple[Any, Any]) -> Any:
    """A function that computes the loss of the batch."""

    def evaluate() -> float:
        probe.batch = batch
        return probe.evaluate()[0]

    return evaluate


def _output(probe: StepProbe, batch: tuple[Any, Any]) -> Any:
    probe.batch = batch
    return probe.output()


def _is_decided(rehearsal: Rehearsal) -> bool:
    if not math.isfinite(rehearsal.losses[-1]):
        return True
    if rehearsal.steps < MIN_REHEARSAL_STEPS:
        return False
    if rehearsal.learned:
        return True
    if rehearsal.steps < MIN_STUCK_STEPS:
        return False
    is_far_above = rehearsal.progress is not None and rehearsal.progress < -MIN_FALLING_PROGRESS
    return rehearsal.crawls or not rehearsal.is_moving or (rehearsal.is_restless and is_far_above)


def _draws_only_masks(trace: Trace) -> bool:
    """Whether the pass drops units and draws no other random numbers, whose repetition makes losses comparable."""
    names = {op.name for op in trace.ops}
    return any(map(dropout_rate, trace.ops)) and names.isdisjoint(RANDOM_OPS)
