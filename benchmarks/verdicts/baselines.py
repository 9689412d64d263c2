"""Verdicts of other tools, from their published thresholds; True means "this will not train".

Each baseline gives two verdicts: one from the first step alone, which is what Leadline sees, and one from the first
eleven steps of real training (`observation.py`), which is more. A baseline fires if its condition holds at any step,
unless its authors define it otherwise. Free parameters have their documented defaults.
Sources, as read in November 2026:

- AUTOTRAINER: Zhang et al. 2021 (ICSE), and `AutoTrainer/utils/monitor.py` of shiningrain/AUTOTRAINER, whose defaults
  are beta_1 = 1e-3, beta_2 = 1e-4, beta_3 = 70, gamma = 0.7.
- SageMaker Debugger: the parameter tables of "List of Debugger built-in rules" in the developer guide.
- torchmortem: the defaults of the detectors in `src/torchmortem/detectors/` of sebseager/torchmortem.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence

from benchmarks.verdicts.observation import Observation, ParameterRecord, StepRecord
from benchmarks.verdicts.problem import Problem

Baseline = Callable[[Problem, Observation], bool]

VANISHING_RATIO, VANISHING_NORM = 1e-3, 1e-4  # AUTOTRAINER beta_1, beta_2
EXPLODING_RATIO = 70.0  # AUTOTRAINER beta_3
DYING_SHARE = 0.7  # AUTOTRAINER gamma: share of gradient entries that are zero
MAX_LOSS = 1e5  # AUTOTRAINER loss_issue
VANISHING_MEAN = 1e-7  # SageMaker VanishingGradient threshold
INACTIVE_LAYER = 0.5  # SageMaker DeadRelu and SaturatedActivation threshold_layer, 50 %
MIN_LOSS_DECREASE, AFTER_STEPS = 0.001, 10  # SageMaker LossNotDecreasing diff_percent 0.1, num_steps
LARGE_UPDATE, SMALL_UPDATE = 10.0, 1e-8  # SageMaker WeightUpdateRatio
VARIANCE_RATIO = 10.0  # SageMaker PoorWeightInitialization threshold
GRADIENT_RANGE = 0.001  # SageMaker PoorWeightInitialization distribution_range
LOSS_PATIENCE = 5  # SageMaker PoorWeightInitialization patience
TORCHMORTEM_RATIO, TORCHMORTEM_CRITICAL_RATIO = 100.0, 1000.0  # torchmortem gradient_flow
TORCHMORTEM_NORM = 1000.0  # torchmortem gradient_flow exploding_norm_threshold
TORCHMORTEM_STALL, TORCHMORTEM_STALL_SHARE = (
    1e-8,
    0.3,
)  # torchmortem gradient_flow stall_threshold, stall_fraction
TORCHMORTEM_SHARE, TORCHMORTEM_CRITICAL_SHARE = 0.5, 0.8  # torchmortem dead_units and saturation
TORCHMORTEM_SLOW, TORCHMORTEM_FAST = 1e-5, 1e-1  # torchmortem update_ratio
# Heuristic: the rule of thumb that deeper networks without skips do not train.
MAX_PLAIN_DEPTH = 20
RESIDUAL_FREE = ("plain", "none")


def always_trains(problem: Problem, steps: Observation) -> bool:
    """Never fires."""
    return False


def deep_and_plain(problem: Problem, steps: Observation) -> bool:
    """More than 20 layers and no residual connection. The depth of a recurrent network includes its sequence length."""
    if problem.family == "rnn":
        _, _, length = problem.scheme.partition("/")
        return int(length or 16) * problem.depth > MAX_PLAIN_DEPTH
    return problem.depth > MAX_PLAIN_DEPTH and problem.scheme in RESIDUAL_FREE


def autotrainer(problem: Problem, steps: Observation) -> bool:
    """First over last kernel gradient below 1e-3 (the first below 1e-4) or above 70; 70 % zeros; or non-finite."""
    return any(_autotrainer_step(step) for step in steps)


def _autotrainer_step(step: StepRecord) -> bool:
    norms = [p.grad_norm for p in step.parameters if p.matrix]
    if not step.finite or step.loss >= MAX_LOSS:
        return True
    if not norms:
        return False
    without_last = math.inf if norms[0] > 0 else 0.0
    ratio = norms[0] / norms[-1] if norms[-1] > 0 else without_last
    vanishing = ratio < VANISHING_RATIO and norms[0] < VANISHING_NORM
    zeros = sum(p.grad_zero_share * p.count for p in step.parameters) / sum(p.count for p in step.parameters)
    return vanishing or ratio > EXPLODING_RATIO or zeros >= DYING_SHARE


def sagemaker(problem: Problem, steps: Observation) -> bool:
    """VanishingGradient, ExplodingTensor, DeadRelu, SaturatedActivation, WeightUpdateRatio or LossNotDecreasing."""
    return any(_sagemaker_step(step) for step in steps) or loss_not_decreasing(problem, steps)


def _sagemaker_step(step: StepRecord) -> bool:
    dead = any(a.inactive_units > INACTIVE_LAYER for a in step.activations if a.kind == "ReLU")
    saturated = any(a.saturated_units > INACTIVE_LAYER for a in step.activations)
    vanishing = any(p.grad_mean_abs < VANISHING_MEAN for p in step.parameters)
    updates = any(not SMALL_UPDATE <= p.update_ratio <= LARGE_UPDATE for p in step.parameters if p.matrix)
    return not step.finite or vanishing or dead or saturated or updates


def loss_not_decreasing(problem: Problem, steps: Observation) -> bool:
    """SageMaker's LossNotDecreasing: after ten steps the loss is not 0.1 % lower. Silent before that."""
    if len(steps) <= AFTER_STEPS:
        return not math.isfinite(steps[-1].loss)
    return not steps[AFTER_STEPS].loss < steps[0].loss * (1 - MIN_LOSS_DECREASE)


def poor_initialization(problem: Problem, steps: Observation) -> bool:
    """SageMaker's PoorWeightInitialization: unequal variances of ReLU inputs, narrow gradients, or a stuck loss."""
    losses = [step.loss for step in steps]
    late = losses[LOSS_PATIENCE:]
    stuck = bool(late) and not min(late) < min(losses[:LOSS_PATIENCE])
    return stuck or any(_unequal(step) or _narrow(step) for step in steps)


def _unequal(step: StepRecord) -> bool:
    variances = [
        a.input_variance for a in step.activations if a.kind == "ReLU" and a.input_variance is not None
    ]
    return bool(variances) and max(variances) > VARIANCE_RATIO * min(variances)


def _narrow(step: StepRecord) -> bool:
    return any(p.grad_spread is not None and p.grad_spread < GRADIENT_RANGE for p in step.parameters)


def torchmortem(problem: Problem, steps: Observation) -> bool:
    """Any torchmortem finding at warning level or above."""
    return (
        _torchmortem(steps, TORCHMORTEM_RATIO, TORCHMORTEM_SHARE)
        or _stalled(steps)
        or _update(steps, TORCHMORTEM_SLOW)
    )


def torchmortem_critical(problem: Problem, steps: Observation) -> bool:
    """Only torchmortem findings of critical severity."""
    return _torchmortem(steps, TORCHMORTEM_CRITICAL_RATIO, TORCHMORTEM_CRITICAL_SHARE) or _update(
        steps, -math.inf
    )


def _torchmortem(steps: Observation, ratio: float, share: float) -> bool:
    """Gradient ratio and activations over the second half of the steps; norms over all."""
    late = steps[len(steps) // 2 :]
    norms = [_mean([step.parameters[i].grad_norm for step in late]) for i in _matrices(steps)]
    vanishing = len(norms) > 1 and norms[-1] > 1e-30 and norms[-1] >= ratio * max(norms[0], 1e-300)
    exploding = any(p.grad_norm > TORCHMORTEM_NORM for step in steps for p in step.parameters)
    layers = zip(*(step.activations for step in late), strict=True)
    idle = any(
        max(_mean([a.near_zero for a in layer]), _mean([a.near_one for a in layer])) > share
        for layer in layers
    )
    return vanishing or exploding or idle


def _matrices(steps: Observation) -> list[int]:
    return [i for i, p in enumerate(steps[0].parameters) if p.matrix]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _stalled(steps: Observation) -> bool:
    """A parameter's gradient is below 1e-8 in at least 30 % of the steps."""

    def share(parameters: Sequence[ParameterRecord]) -> float:
        return _mean([float(p.grad_norm < TORCHMORTEM_STALL) for p in parameters])

    return any(
        share(p) >= TORCHMORTEM_STALL_SHARE for p in zip(*(step.parameters for step in steps), strict=True)
    )


def _update(steps: Observation, low: float) -> bool:
    """The median of update over weight in the second half of the steps is beyond its bounds in some matrix."""
    late = steps[1:][len(steps[1:]) // 2 :]
    for i in _matrices(steps):
        ratios = [r for r in (step.parameters[i].update_ratio for step in late) if r > 0]
        if ratios and not low <= statistics.median(ratios) <= TORCHMORTEM_FAST:
            return True
    return False


WITHOUT_A_RUN: dict[str, Baseline] = {
    "always trains": always_trains,
    "deeper than 20 without residuals": deep_and_plain,
}
MONITORS: dict[str, Baseline] = {
    "AUTOTRAINER": autotrainer,
    "SageMaker Debugger": sagemaker,
    "SageMaker PoorWeightInitialization": poor_initialization,
    "torchmortem": torchmortem,
    "torchmortem, critical only": torchmortem_critical,
}
NAMES = (
    *WITHOUT_A_RUN,
    *(f"{name}, first step" for name in MONITORS),
    *(f"{name}, 11 steps" for name in MONITORS),
    "SageMaker LossNotDecreasing, 11 steps",
)


def baseline_verdicts(problem: Problem, steps: Observation) -> dict[str, bool]:
    """Return the verdict of each of `NAMES`."""
    verdicts = [baseline(problem, steps) for baseline in WITHOUT_A_RUN.values()]
    verdicts += [baseline(problem, steps[:1]) for baseline in MONITORS.values()]
    verdicts += [baseline(problem, steps) for baseline in MONITORS.values()]
    return dict(zip(NAMES, [*verdicts, loss_not_decreasing(problem, steps)], strict=True))
