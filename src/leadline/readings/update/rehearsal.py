"""Makes a few real steps until it is clear whether the network learns, and undoes them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any

import torch
from msgspec.structs import replace as replace_fields
from torch import Tensor
from torch.utils._pytree import tree_map

from leadline.case import Case, split_batch
from leadline.errors import LeadlineError, summarize_error
from leadline.ops.arguments import dropout_rate
from leadline.ops.table import RANDOM_OPS
from leadline.readings.update.constant import fitted_constant_loss, loss_terms, reference_losses
from leadline.readings.update.evaluation import FixedStatistics, RunningStatistics
from leadline.readings.update.probe import StepProbe, open_probe
from leadline.records import Gap, Rehearsal, Trace
from leadline.records.rehearsal import (
    MAX_REHEARSAL_STEPS,
    MIN_FALLING_PROGRESS,
    MIN_STUCK_STEPS,
    ReferenceRun,
)
from leadline.tracer.initializers import reset_parameters
from leadline.tracer.inputs import unwrap
from leadline.tracer.restore import active_mode, preserve_process_state
from leadline.tracer.values import tensors_in

# Derived: with momentum 0.9 the steps have grown to 1 - 0.9^8 = 57 % of their final length by then.
MIN_REHEARSAL_STEPS = 8
MIN_STEP_GROWTH = 1 - 0.9**MIN_REHEARSAL_STEPS
# Heuristic: so many that they are not learned by heart at once, and the loader of a real program is not read for long.
MAX_BATCHES = 16
# Heuristic: bytes of all batches together; large batches are fewer.
MAX_BATCH_BYTES = 256 * 2**20
# Heuristic: samples of a batch; half of fewer say nothing about the other half.
MIN_SPLIT_SAMPLES = 4
# Heuristic: share of the loss; for samples on their own only rounding, masks of dropout and batch norm remain.
MAX_COUPLING = 0.1
# Heuristic: a quarter of the steps after which a network may be called stuck, so that most are made at the full rate.
WARM_UP_STEPS = 16

Batch = tuple[Any, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class RehearsalBatches:
    """What the steps see in turn, and one batch that they do not see."""

    trained: Sequence[Batch]
    held_out: Batch | None
    is_split: bool = False
    """They are two halves of one batch."""


class RehearsalTimeoutError(Exception):
    """The time was over before the steps could tell anything."""


def rehearse(
    case: Case,
    trace: Trace,
    *,
    steps: int = MAX_REHEARSAL_STEPS,
    is_late: Callable[[], bool] = lambda: False,
    report_gap: Callable[[Gap], object] = lambda _: None,
) -> Rehearsal:
    """Train on the batch, or on the first few in turn, for at most `steps` steps; stops once it is clear how they end.

    Every pass starts from the same buffers and random numbers, so only the parameters change between two steps on one
    batch. Only dropout draws its masks anew, as it does in training. `trace` is a trace of the case. A rate that is
    being warmed up rises to its full value meanwhile. If the network learns little or slowly, or learns only by heart,
    plain recipes train it too, to see how much can be learned in so few steps; `report_gap` is told why they
    cannot. No step begins when `is_late()` is true; if fewer than `MIN_REHEARSAL_STEPS` were made by then,
    RehearsalTimeoutError is raised.
    """
    rehearsal, batches = _train_as_given(case, trace, steps, is_late)
    is_fast = rehearsal.is_clear and rehearsal.steps <= REFERENCE_STEPS
    if is_fast or steps < REFERENCE_COST or is_late():
        return rehearsal
    try:
        references = train_references(case, batches, is_late)
    except (
        Exception
    ) as error:  # an op may refuse a gradient or new weights; the user's own training is not concerned
        report_gap(Gap(what=REFERENCES, why=f"training it by them raised {summarize_error(error)}"))
        return rehearsal
    return replace_fields(rehearsal, references=references)


def _train_as_given(
    case: Case, trace: Trace, steps: int, is_late: Callable[[], bool]
) -> tuple[Rehearsal, RehearsalBatches]:
    """The rehearsal with the user's optimizer, and its batches; its copies of the weights are freed at the end."""
    batches = _first_batches(case)
    with open_probe(case) as probe:
        rehearsal = _train_on(case, trace, probe, batches, steps, is_late)
        if rehearsal is None:
            batches = RehearsalBatches(trained=[(case.inputs, case.targets)], held_out=None)
            rehearsal = _train(case, trace, probe, batches, steps, is_late)
    return rehearsal, batches


def _train_on(
    case: Case,
    trace: Trace,
    probe: StepProbe,
    batches: RehearsalBatches,
    steps: int,
    is_late: Callable[[], bool],
) -> Rehearsal | None:
    """The rehearsal on these batches; None if they are halves of a batch whose samples belong together."""
    if not batches.is_split:
        return _train(case, trace, probe, batches, steps, is_late)
    try:
        rehearsal = _train(case, trace, probe, batches, steps, is_late)
        is_sound = _has_independent_halves(probe, batches, rehearsal)
    except RehearsalTimeoutError:
        raise
    except (
        Exception
    ):  # the model does not take these samples; what it raises on the whole batch is its own error
        is_sound = False
    if is_sound:
        return rehearsal
    probe.guard.rewind_step()
    return None


def _has_independent_halves(probe: StepProbe, batches: RehearsalBatches, rehearsal: Rehearsal) -> bool:
    """Whether the loss of the batch is the mean of those of its halves, as it is for samples on their own.

    It is not where a sample is compared with others, as in a contrastive loss or a graph. After the steps it tells more
    than before, when all outputs are alike. A loss that became NaN or infinite says enough. Batch norm also couples
    samples, but halves of a batch can be trained with it, so it may normalize by its running statistics here.
    """
    if not math.isfinite(rehearsal.last):
        return True
    if _has_mean_loss(probe, batches):
        return True
    with active_mode(FixedStatistics()):
        return _has_mean_loss(probe, batches)


def _has_mean_loss(probe: StepProbe, batches: RehearsalBatches) -> bool:
    """Whether the loss of the batch is the mean of those of its halves."""
    whole = _evaluation(probe, (probe.case.inputs, probe.case.targets))()
    halves = [_evaluation(probe, each)() for each in (*batches.trained, batches.held_out) if each is not None]
    return abs(sum(halves) / 2 - whole) <= MAX_COUPLING * abs(whole)


def _measure_limits(case: Case, trace: Trace, probe: StepProbe, batches: RehearsalBatches) -> Rehearsal:
    """A rehearsal without steps: the loss of the best constant output, and that of each batch before the first step."""
    trained = batches.trained
    evaluations = [_evaluation(probe, each) for each in trained]
    constant, floor = reference_losses(loss_terms(trace), evaluations)
    if constant is None and case.loss is not None:
        constant = fitted_constant_loss(case.loss, [(_output(probe, each), each[1]) for each in trained])
    starts = tuple([each() for each in evaluations]) if len(trained) > 1 else ()
    fresh = _loss_of_new_weights(probe, evaluations) if constant is None else None
    return Rehearsal(
        losses=(), constant=constant, fresh=fresh, floor=floor, starts=starts, is_split=batches.is_split
    )


def _loss_of_new_weights(probe: StepProbe, evaluations: Sequence[Callable[[], float]]) -> float | None:
    """The loss of the network if torch's own initializers had made its weights; None if it has none or cannot run.

    Where the targets do not say what a constant output would reach, it tells a high first loss from a usual one.
    """
    try:
        with torch.no_grad():
            reset_parameters(probe.model, seed=0)
        losses = [each() for each in evaluations]
    except (
        Exception
    ):  # new weights may break what the user's code asserts; the user's training is not concerned
        return None
    finally:
        probe.guard.rewind_step()
    return sum(losses) / len(losses) if all(map(math.isfinite, losses)) else None


def _train(
    case: Case,
    trace: Trace,
    probe: StepProbe,
    batches: RehearsalBatches,
    steps: int,
    is_late: Callable[[], bool],
) -> Rehearsal:
    """Steps until the answer is known, from the loss of a constant output to that of the held-out samples."""
    rehearsal, losses = _measure_limits(case, trace, probe, batches), []
    has_fresh_masks, growing = _draws_only_masks(trace), _growing_steps(probe.optimizer)
    statistics = RunningStatistics(probe.model)
    with _warm_up(probe.optimizer) as set_rates:
        for step in range(steps + 1):
            if is_late():
                if step <= MIN_REHEARSAL_STEPS:
                    raise RehearsalTimeoutError
                break
            probe.batch = batches.trained[step % len(batches.trained)]
            probe.seed = step if has_fresh_masks else None
            measure = probe.loss if step == steps else probe.loss_and_gradient
            with statistics.in_training(probe):
                loss, error = _loss_after(step, measure)
            losses.append(loss)
            rehearsal = replace_fields(rehearsal, losses=tuple(losses), error=error)
            if _is_held_out_due(step):
                rehearsal = _with_held_out(rehearsal, probe, batches, statistics)
            is_open = _may_memorize(rehearsal) or (step < growing and not _is_lost(rehearsal))
            if step == steps or (_is_decided(rehearsal) and not is_open):
                break
            set_rates(step)
            probe.step(None)
    if _is_held_out_due(rehearsal.steps):
        return rehearsal
    return _with_held_out(rehearsal, probe, batches, statistics)


def _loss_after(steps: int, measure: Callable[[], float]) -> tuple[float, str]:
    """The loss and ""; or NaN and what the model raised, if it raises because of what the steps made of its weights.

    Then it raises again when the pass is repeated. An error that does not come back, one before the first step, and one
    of the memory have nothing to do with the steps, and are raised.
    """
    try:
        return measure(), ""
    except (LeadlineError, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        if not steps:
            raise
        try:
            measure()
        except Exception as second_error:
            if type(second_error) is type(error):
                return math.nan, summarize_error(error)
        raise


def _growing_steps(optimizer: torch.optim.Optimizer) -> float:
    r"""The number of steps after which momentum no longer makes them much longer.

    A buffer $b \leftarrow \beta b + g$ has grown to $1 - \beta^n$ of its final length after $n$ steps. Adam divides by
    that share, so its steps do not grow.
    """
    decays = [float(group.get("momentum") or 0.0) for group in optimizer.param_groups]
    shares = [math.log(1 - MIN_STEP_GROWTH) / math.log(each) for each in decays if 0 < each < 1]
    return max(shares, default=0.0)


def _may_memorize(rehearsal: Rehearsal) -> bool:
    """Whether the loss fell far on the samples that the steps see, and more steps may yet lower it on the others."""
    is_early = rehearsal.has_fallen_far and rehearsal.steps < REFERENCE_STEPS
    return is_early and (rehearsal.only_memorizes or not _is_held_out_due(rehearsal.steps))


def _is_held_out_due(step: int) -> bool:
    """Whether the held-out samples are looked at after so many steps: 8, 16, 32 and so on, because it costs a pass."""
    return step >= MIN_REHEARSAL_STEPS and step & (step - 1) == 0


def _with_held_out(
    rehearsal: Rehearsal, probe: StepProbe, batches: RehearsalBatches, statistics: RunningStatistics
) -> Rehearsal:
    """The rehearsal with the lower of the losses that the held-out samples had before and have now."""
    if batches.held_out is None:
        return rehearsal
    if rehearsal.error:
        return replace_fields(rehearsal, held_out=_lower(rehearsal.held_out, math.nan))
    loss = _lower(rehearsal.held_out, _held_out_loss(probe, batches.held_out, statistics))
    in_training = _lower(rehearsal.held_out_in_training, _evaluation(probe, batches.held_out)())
    early = loss if rehearsal.steps <= REFERENCE_STEPS else rehearsal.held_out_early
    return replace_fields(rehearsal, held_out=loss, held_out_in_training=in_training, held_out_early=early)


def _held_out_loss(probe: StepProbe, batch: Batch, statistics: RunningStatistics) -> float:
    """The loss of the batch in evaluation mode, or in training mode if the model has no loss in evaluation mode."""
    evaluate = _evaluation(probe, batch)
    try:
        with statistics.in_evaluation(probe):
            return evaluate()
    except Exception:  # such as a detector that returns boxes then
        return evaluate()


def _lower(before: float | None, now: float) -> float:
    """The lower of two losses, of which any may not be finite and the first not exist."""
    losses = [each for each in (before, now) if each is not None and math.isfinite(each)]
    return min(losses, default=now)


@contextmanager
def _warm_up(optimizer: torch.optim.Optimizer) -> Iterator[Callable[[int], None]]:
    """A function that sets the rates of a step: those that a scheduler is warming up rise to their full value.

    A scheduler of torch notes the full rate as `initial_lr`.
    """
    groups = [group for group in optimizer.param_groups if isinstance(group.get("lr"), float)]
    rising = [
        (group, group["lr"], group["initial_lr"])
        for group in groups
        if isinstance(group.get("initial_lr"), float) and group["initial_lr"] > group["lr"]
    ]

    def set_rates(step: int) -> None:
        share = min((step + 1) / WARM_UP_STEPS, 1.0)
        for group, now, full in rising:
            group["lr"] = now + share * (full - now)

    try:
        yield set_rates
    finally:
        for group, now, _ in rising:
            group["lr"] = now


def _first_batches(case: Case) -> RehearsalBatches:
    """The batch of the case and its first further ones, of which the last is held out; or else two halves of the batch.

    Without a second batch, learning by heart looks like learning. So the steps see half of the samples.
    """
    own = (case.inputs, case.targets)
    most = max(min(MAX_BATCH_BYTES // max(_bytes_of(own), 1), MAX_BATCHES), 2)
    with preserve_process_state():
        others = [split_batch(each, case) for each in islice(case.batches or (), most - 1)]
    if others:
        return RehearsalBatches(trained=[own, *others[:-1]], held_out=others[-1])
    halves = split_samples(own)
    if halves is None:
        return RehearsalBatches(trained=[own], held_out=None)
    return RehearsalBatches(trained=halves[:1], held_out=halves[1], is_split=True)


def _bytes_of(batch: Batch) -> int:
    return sum(each.numel() * each.element_size() for each in tensors_in(batch))


def split_samples(batch: Batch) -> tuple[Batch, Batch] | None:
    """The batch with a random half of its samples, and with the others, each taken twice; None if it has too few.

    Sizes stay as they are, because a model may rely on them, and indices into the batch stay valid. The half is random,
    because a batch may be sorted, or alternate. What has another leading size than the inputs, such as a mask, stays
    whole.
    """
    samples = next((each.shape[0] for each in tensors_in(batch[0]) if each.dim()), 0)
    if samples < MIN_SPLIT_SAMPLES:
        return None
    order = torch.randperm(samples, generator=torch.Generator().manual_seed(0), device="cpu")
    first, second = order[: samples // 2], order[samples // 2 :]
    return _choose(batch, _filled(first, samples)), _choose(batch, _filled(second, samples))


def _filled(index: Tensor, size: int) -> Tensor:
    """The index repeated up to this size."""
    return index.repeat(2 + size // len(index))[:size]


def _choose(batch: Batch, index: Tensor) -> Batch:
    def chosen(leaf: Any) -> Any:
        is_by_sample = isinstance(leaf, Tensor) and leaf.dim() > 0 and leaf.shape[0] == len(index)
        return leaf.detach()[index.to(leaf.device)] if is_by_sample else leaf

    inputs, targets = tree_map(chosen, batch)
    return inputs, targets


def _evaluation(probe: StepProbe, batch: Batch) -> Callable[[], float]:
    """A function that computes the loss of the batch."""

    def evaluate() -> float:
        before, probe.batch = probe.batch, batch
        loss = probe.evaluate()[0]
        probe.batch = before
        return loss

    return evaluate


def _output(probe: StepProbe, batch: Batch) -> Any:
    probe.batch = batch
    return probe.output()


def _is_lost(rehearsal: Rehearsal) -> bool:
    return not math.isfinite(rehearsal.losses[-1])


def _is_decided(rehearsal: Rehearsal) -> bool:
    if _is_lost(rehearsal):
        return True
    if rehearsal.steps < MIN_REHEARSAL_STEPS:
        return False
    if rehearsal.has_fallen_far:
        return True
    if rehearsal.steps < MIN_STUCK_STEPS:
        return False
    is_far_above = rehearsal.progress is not None and rehearsal.progress < -MIN_FALLING_PROGRESS
    return rehearsal.crawls or not rehearsal.is_moving or (rehearsal.is_restless and is_far_above)


def _draws_only_masks(trace: Trace) -> bool:
    """Whether the pass drops units and draws no other random numbers, whose repetition makes losses comparable."""
    names = {op.name for op in trace.ops}
    return any(map(dropout_rate, trace.ops)) and names.isdisjoint(RANDOM_OPS)


REFERENCES = "what plain recipes reach in as many steps"

# References: the same network, trained by plain recipes. What they reach tells how much can be learned in so few steps.

# Heuristic: the usual rate of Adam for large networks, and that for small ones.
REFERENCE_RATES = (1e-3, 1e-2)
# Heuristic: steps after which the better recipes can be told from the worse.
REFERENCE_TRIAL_STEPS = 16
# Heuristic: as many as a rehearsal makes before it may call a network stuck.
REFERENCE_STEPS = MIN_STUCK_STEPS
# Derived: from two kinds of weights, a trial at each rate and one run at the better.
REFERENCE_COST = 2 * (len(REFERENCE_RATES) * REFERENCE_TRIAL_STEPS + REFERENCE_STEPS)


def train_references(
    case: Case, batches: RehearsalBatches, is_late: Callable[[], bool] = lambda: False
) -> tuple[ReferenceRun, ...]:
    """Train the network from the user's weights and from new ones, each at the better of two rates.

    All parameters learn, also those that are frozen or that the optimizer does not hold. Everything is undone. If
    `is_late()` becomes true before they are trained, there are no references. What the model raises is raised.
    """
    parameters = [each for each in unwrap(case.model).parameters() if each.is_floating_point()]
    plain = replace(case, optimizer=torch.optim.Adam(parameters, lr=REFERENCE_RATES[0]))
    try:
        with open_probe(plain) as probe:
            run = partial(_run, probe, batches, is_late)
            return tuple(
                _best_run(partial(run, is_reset=is_reset), len(batches.trained)) for is_reset in (False, True)
            )
    except RehearsalTimeoutError:
        return ()


def _best_run(run: Callable[..., ReferenceRun], batches: int) -> ReferenceRun:
    """The run at the rate that is better after a few steps, trained on; there are so many batches."""
    trials = [run(lr=rate, steps=REFERENCE_TRIAL_STEPS) for rate in REFERENCE_RATES]
    best = min(trials, key=lambda trial: _end(trial, batches))
    return run(lr=best.lr, steps=REFERENCE_STEPS)


def _run(
    probe: StepProbe,
    batches: RehearsalBatches,
    is_late: Callable[[], bool],
    *,
    lr: float,
    is_reset: bool,
    steps: int,
) -> ReferenceRun:
    probe.guard.rewind_step()
    for each in probe.parameters:
        each.requires_grad = True
    if is_reset:
        with torch.no_grad():
            reset_parameters(probe.model, seed=0)
    for group in probe.optimizer.param_groups:
        group["lr"] = lr
    losses: list[float] = []
    held_out, statistics = None, RunningStatistics(probe.model)
    for step in range(steps + 1):
        if is_late():
            raise RehearsalTimeoutError
        probe.batch = batches.trained[step % len(batches.trained)]
        with statistics.in_training(probe):
            losses.append(probe.gradient()[0].item())
        if batches.held_out is not None and _is_held_out_due(step):
            held_out = _lower(held_out, _held_out_loss(probe, batches.held_out, statistics))
        if not math.isfinite(losses[-1]) or step == steps:
            break
        probe.step(None)
    return ReferenceRun(losses=tuple(losses), lr=lr, is_reset=is_reset, held_out=held_out)


def _end(run: ReferenceRun, batches: int) -> float:
    """The mean of its last losses, one for each batch; infinite if one is not finite."""
    last = run.losses[-batches:]
    return sum(last) / len(last) if all(map(math.isfinite, last)) else math.inf
