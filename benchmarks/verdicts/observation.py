"""Records what a monitor with hooks measures in the first training steps; all baselines read it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.verdicts.case_builder import build, loss, problem_batches
from benchmarks.verdicts.problem import Problem

# Derived: SageMaker's rule compares the loss of step 10 with that of step 0.
STEPS = 11
# Cited: torchmortem's collector counts a smaller activation as dead.
NEAR_ZERO = 1e-6
# Cited: torchmortem's collector counts a larger activation as saturated.
NEAR_ONE = 0.95
# Cited: SageMaker's threshold_inactivity of 1 %; a unit active on fewer samples is inactive.
MIN_ACTIVITY = 0.01
# Cited: input limits of SageMaker's SaturatedActivation.
SATURATION_INPUTS = {"Tanh": (-9.4999, 9.4999), "Sigmoid": (-23.0, 16.99999)}
ACTIVATIONS = (nn.ReLU, nn.GELU, nn.ELU, nn.SiLU, nn.Tanh, nn.Sigmoid, nn.LeakyReLU)


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterRecord:
    """One parameter and its gradient at one step; `update_ratio` is |step| / |weight|."""

    name: str
    matrix: bool
    count: int
    grad_norm: float
    grad_mean_abs: float
    grad_zero_share: float
    grad_spread: float | None
    """95th minus 5th percentile; None unless a matrix."""
    update_ratio: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivationRecord:
    """The output of one leaf module at one step."""

    name: str
    kind: str
    near_zero: float
    """Share of elements."""
    near_one: float
    inactive_units: float
    """Share of units active on fewer than 1 % of the samples."""
    saturated_units: float
    """Share of units whose input lies outside the limits on more than 99 % of the samples."""
    input_variance: float | None
    """Variance of an activation module's input; None for other modules."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """One step of training. `finite` is false if the loss or any gradient is non-finite."""

    loss: float
    finite: bool
    parameters: tuple[ParameterRecord, ...]
    activations: tuple[ActivationRecord, ...]


Observation = tuple[StepRecord, ...]


def observe(problem: Problem, steps: int = STEPS) -> Observation:
    """Train the first steps with hooks and return their records; stop at the first non-finite loss."""
    case, records = build(problem), []
    assert case.optimizer is not None
    hooks = _ActivationHooks(case.model)
    for (inputs, targets), _ in zip(problem_batches(problem), range(steps), strict=False):
        step_loss = loss(case.model(inputs), targets)
        case.optimizer.zero_grad()
        step_loss.backward()
        before = {name: p.detach().clone() for name, p in case.model.named_parameters()}
        case.optimizer.step()
        parameters = tuple(_parameters(case.model, before))
        finite = math.isfinite(step_loss.item()) and all(math.isfinite(p.grad_norm) for p in parameters)
        records.append(
            StepRecord(
                loss=step_loss.item(), finite=finite, parameters=parameters, activations=tuple(hooks.take())
            )
        )
        if not math.isfinite(step_loss.item()):
            break
    return tuple(records)


def _parameters(model: nn.Module, before: dict[str, Tensor]) -> Iterator[ParameterRecord]:
    for name, parameter in model.named_parameters():
        if parameter.grad is None:
            continue
        grad, old = parameter.grad.float(), before[name].float()
        yield ParameterRecord(
            name=name,
            matrix=parameter.ndim > 1,
            count=parameter.numel(),
            grad_norm=float(grad.norm()),
            grad_mean_abs=float(grad.abs().mean()),
            grad_zero_share=float((grad == 0).float().mean()),
            grad_spread=spread(grad) if parameter.ndim > 1 else None,
            update_ratio=float((parameter.detach().float() - old).norm() / old.norm().clamp_min(1e-30)),
        )


def spread(values: Tensor) -> float:
    """Return the 95th minus the 5th percentile."""
    low, high = torch.quantile(values.flatten(), torch.tensor([0.05, 0.95])).tolist()
    return float(high - low)


class _ActivationHooks:
    """Forward hooks on every leaf module with parameters and on every activation module."""

    def __init__(self, model: nn.Module) -> None:
        self.records: dict[str, ActivationRecord] = {}
        for name, module in model.named_modules():
            owns = next(module.parameters(recurse=False), None) is not None
            if next(module.children(), None) is None and (owns or isinstance(module, ACTIVATIONS)):
                module.register_forward_hook(self._hook(name))

    def _hook(self, name: str) -> Any:
        @torch.no_grad()
        def hook(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
            if isinstance(output, Tensor):
                self.records[name] = activation_record(name, module, inputs[0].float(), output.float())

        return hook

    def take(self) -> list[ActivationRecord]:
        """Return the records since the last call, in order, and forget them."""
        records, self.records = list(self.records.values()), {}
        return records


def activation_record(name: str, module: nn.Module, inputs: Tensor, output: Tensor) -> ActivationRecord:
    """Return the statistics of one module's output."""
    kind = type(module).__name__
    low, high = SATURATION_INPUTS.get(kind, (-math.inf, math.inf))
    saturated = per_unit((inputs < low) | (inputs > high)) if kind in SATURATION_INPUTS else None
    size = output.abs()
    return ActivationRecord(
        name=name,
        kind=kind,
        near_zero=float((size < NEAR_ZERO).float().mean()),
        near_one=float((size > NEAR_ONE).float().mean()),
        inactive_units=float((per_unit(output > 0) < MIN_ACTIVITY).float().mean()),
        saturated_units=0.0 if saturated is None else float((saturated > 1 - MIN_ACTIVITY).float().mean()),
        input_variance=float(inputs.var()) if isinstance(module, ACTIVATIONS) else None,
    )


def per_unit(flags: Tensor) -> Tensor:
    """Return the share of true flags per unit: an image channel, otherwise a feature."""
    unit = 1 if flags.ndim == 4 else flags.ndim - 1
    return flags.float().transpose(0, unit).flatten(1).mean(1)
