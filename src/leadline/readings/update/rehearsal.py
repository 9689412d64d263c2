"""Makes a few real steps until it is clear whether the network learns, and undoes them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import torch
from msgspec.structs import replace as replace_fields

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
    ReferenceRun,
)
from leadline.tracer.initializers import reset_parameters
from leadline.tracer.inputs import unwrap
from leadline.tracer.restore import preserve_process_state

# Derived: with momentum 0.9 the steps have grown to 1 - 0.9^8 = 57 % of their final length by then.
MIN_REHEARSAL_STEPS = 8
# Heuristic: so few that each is seen twice before the earliest end of a rehearsal.
MAX_TRAINED_BATCHES = 4

Batch = tuple[Any, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class RehearsalBatches:
    """What the steps see in turn, and one batch that they do not see."""

    trained: Sequence[Batch]
    held_out: Batch | None


def rehearse(case: Case, trace: Trace, *, steps: int = MAX_REHEARSAL_STEPS) -> Rehearsal:
    """Train on the batch, or on the first few in turn, for at most `steps` steps; stops once it is clear how they end.

    Every pass starts from the same buffers and random numbers, so only the parameters change between two steps on one
    batch. Only dropout draws its masks anew, as it does in training. `trace` is a trace of the case. If the network
    learns little or slowly, plain recipes train it too, to see how much can be learned in so few steps.
    """
    batches = _first_batches(case)
    with open_probe(case) as probe:
        empty = _measure_limits(case, trace, probe, batches.trained)
        rehearsal = _train(probe, batches, empty, steps, has_fresh_masks=_draws_only_masks(trace))
    is_fast = rehearsal.is_clear and rehearsal.steps <= REFERENCE_STEPS
    if is_fast or steps < REFERENCE_COST:
        return rehearsal
    return replace_fields(rehearsal, references=train_references(case, batches))


def _measure_limits(case: Case, trace: Trace, probe: StepProbe, trained: Sequence[Batch]) -> Rehearsal:
    """A rehearsal without steps: the loss of the best constant output, and that of each batch before the first step."""
    evaluations = [_evaluation(probe, each) for each in trained]
    constant, floor = reference_losses(loss_terms(trace), evaluations)
    if constant is None and case.loss is not None:
        constant = fitted_constant_loss(case.loss, [(_output(probe, each), each[1]) for each in trained])
    starts = tuple([each() for each in evaluations]) if len(trained) > 1 else ()
    return Rehearsal(losses=(), constant=constant, floor=floor, starts=starts)


def _train(
    probe: StepProbe, batches: RehearsalBatches, empty: Rehearsal, steps: int, *, has_fresh_masks: bool
) -> Rehearsal:
    losses: list[float] = []
    for step in range(steps + 1):
        probe.batch = batches.trained[step % len(batches.trained)]
        probe.seed = step if has_fresh_masks else None
        if step == steps:
            losses.append(probe.evaluate()[0])
            break
        losses.append(probe.gradient()[0].item())
        if _is_decided(replace_fields(empty, losses=tuple(losses))):
            break
        probe.step(None)
    held_out = None if batches.held_out is None else _evaluation(probe, batches.held_out)()
    return replace_fields(empty, losses=tuple(losses), held_out=held_out)


def _first_batches(case: Case) -> RehearsalBatches:
    """The batch of the case and its first further ones; the last of three or more is held out."""
    with preserve_process_state():
        others = [split_batch(each, case) for each in islice(case.batches or (), MAX_TRAINED_BATCHES)]
    batches = [(case.inputs, case.targets), *others]
    if len(batches) < 3:
        return RehearsalBatches(trained=batches, held_out=None)
    return RehearsalBatches(trained=batches[:-1], held_out=batches[-1])


def _evaluation(probe: StepProbe, batch: Batch) -> Callable[[], float]:
    """A function that computes the loss of the batch."""

    def evaluate() -> float:
        probe.batch = batch
        return probe.evaluate()[0]

    return evaluate


def _output(probe: StepProbe, batch: Batch) -> Any:
    probe.batch = batch
    return probe.output()


def _is_decided(rehearsal: Rehearsal) -> bool:
    if not math.isfinite(rehearsal.losses[-1]):
        return True
    if rehearsal.steps < MIN_REHEARSAL_STEPS:
        return False
    if rehearsal.is_clear:
        return True
    if rehearsal.steps < MIN_STUCK_STEPS:
        return False
    is_far_above = rehearsal.progress is not None and rehearsal.progress < -MIN_FALLING_PROGRESS
    return rehearsal.crawls or not rehearsal.is_moving or (rehearsal.is_restless and is_far_above)


def _draws_only_masks(trace: Trace) -> bool:
    """Whether the pass drops units and draws no other random numbers, whose repetition makes losses comparable."""
    names = {op.name for op in trace.ops}
    return any(map(dropout_rate, trace.ops)) and names.isdisjoint(RANDOM_OPS)


# References: the same network, trained by plain recipes. What they reach tells how much can be learned in so few steps.

# Heuristic: the usual rate of Adam for large networks, and that for small ones.
REFERENCE_RATES = (1e-3, 1e-2)
# Heuristic: steps after which the better recipes can be told from the worse.
REFERENCE_TRIAL_STEPS = 16
# Heuristic: as many as a rehearsal makes before it may call a network stuck.
REFERENCE_STEPS = MIN_STUCK_STEPS
# Derived: from two kinds of weights, a trial at each rate and one run at the better.
REFERENCE_COST = 2 * (len(REFERENCE_RATES) * REFERENCE_TRIAL_STEPS + REFERENCE_STEPS)


def train_references(case: Case, batches: RehearsalBatches) -> tuple[ReferenceRun, ...]:
    """Train the network from the user's weights and from new ones, each at the better of two rates.

    All parameters learn, also those that are frozen or that the optimizer does not hold. Everything is undone. A model
    that cannot be trained in this way has no references.
    """
    parameters = [each for each in unwrap(case.model).parameters() if each.is_floating_point()]
    plain = replace(case, optimizer=torch.optim.Adam(parameters, lr=REFERENCE_RATES[0]))
    try:
        with open_probe(plain) as probe:
            for each in parameters:
                each.requires_grad = True
            return tuple(_best_run(probe, batches, is_reset=is_reset) for is_reset in (False, True))
    except (
        Exception
    ):  # such as an operation that refuses a gradient: the user's own training is not concerned
        return ()


def _best_run(probe: StepProbe, batches: RehearsalBatches, *, is_reset: bool) -> ReferenceRun:
    """The run at the rate that is better after a few steps, trained on."""
    trials = [
        _run(probe, batches, lr=rate, is_reset=is_reset, steps=REFERENCE_TRIAL_STEPS)
        for rate in REFERENCE_RATES
    ]
    best = min(trials, key=lambda run: _end(run, len(batches.trained)))
    return _run(probe, batches, lr=best.lr, is_reset=is_reset, steps=REFERENCE_STEPS)


def _run(
    probe: StepProbe, batches: RehearsalBatches, *, lr: float, is_reset: bool, steps: int
) -> ReferenceRun:
    probe.rewind()
    if is_reset:
        with torch.no_grad():
            reset_parameters(probe.model, seed=0)
    for group in probe.optimizer.param_groups:
        group["lr"] = lr
    losses: list[float] = []
    for step in range(steps + 1):
        probe.batch = batches.trained[step % len(batches.trained)]
        losses.append(probe.gradient()[0].item())
        if not math.isfinite(losses[-1]) or step == steps:
            break
        probe.step(None)
    held_out = None if batches.held_out is None else _evaluation(probe, batches.held_out)()
    return ReferenceRun(losses=tuple(losses), lr=lr, is_reset=is_reset, held_out=held_out)


def _end(run: ReferenceRun, batches: int) -> float:
    """The mean of its last losses, one for each batch; infinite if one is not finite."""
    last = run.losses[-batches:]
    return sum(last) / len(last) if all(map(math.isfinite, last)) else math.inf
