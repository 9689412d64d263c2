"""Makes a few real steps on one batch until it is clear that the network learns, and undoes them."""

from __future__ import annotations

import math

from leadline.case import Case
from leadline.ops.arguments import dropout_rate
from leadline.ops.table import RANDOM_OPS
from leadline.readings.update.constant import loss_terms, reference_losses
from leadline.readings.update.probe import open_probe
from leadline.records import Rehearsal, Trace
from leadline.records.update import MAX_REHEARSAL_STEPS, MIN_FAILING_STEPS, MIN_FALLING_PROGRESS

# Derived: with momentum 0.9 the steps have grown to 1 - 0.9^8 = 57 % of their final length by then.
MIN_REHEARSAL_STEPS = 8


def rehearse(case: Case, trace: Trace, *, steps: int = MAX_REHEARSAL_STEPS) -> Rehearsal:
    """Train on the batch for at most `steps` steps; stops early once it is clear how they end.

    Every pass starts from the same buffers and random numbers, so only the parameters change between steps. Only
    dropout draws its masks anew, as it does in training. `trace` is a trace of the case.
    """
    losses: list[float] = []
    has_fresh_masks = _draws_only_masks(trace)
    with open_probe(case) as probe:
        constant, floor = reference_losses(loss_terms(trace), [lambda: probe.evaluate()[0]])
        for step in range(steps):
            probe.seed = step if has_fresh_masks else None
            losses.append(probe.gradient()[0].item())
            so_far = Rehearsal(losses=tuple(losses), constant=constant, floor=floor)
            if _is_decided(so_far):
                return so_far
            probe.step(None)
        losses.append(probe.evaluate()[0])
    return Rehearsal(losses=tuple(losses), constant=constant, floor=floor)


def _is_decided(rehearsal: Rehearsal) -> bool:
    if not math.isfinite(rehearsal.losses[-1]):
        return True
    if rehearsal.steps >= MIN_REHEARSAL_STEPS and rehearsal.learned:
        return True
    is_far_above = rehearsal.progress is not None and rehearsal.progress < -MIN_FALLING_PROGRESS
    is_failing = rehearsal.crawls or (rehearsal.is_restless and is_far_above)
    return rehearsal.steps >= MIN_FAILING_STEPS and is_failing


def _draws_only_masks(trace: Trace) -> bool:
    """Whether the pass drops units and draws no other random numbers, whose repetition makes losses comparable."""
    names = {op.name for op in trace.ops}
    return any(map(dropout_rate, trace.ops)) and names.isdisjoint(RANDOM_OPS)
