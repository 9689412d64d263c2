"""What a monitor with hooks sees in the first steps of training: the common ground of all baselines."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.verdicts.case_builder import build, loss, problem_batches
from benchmarks.verdicts.problem import Problem

STEPS = 11  # the loss of step 10 can be compared with that of step 0, as SageMaker's rule does
NEAR_ZERO = 1e-6  # torchmortem's collector: an activation this small is dead
NEAR_ONE = 0.95  # torchmortem's collector: an activation this large in magnitude is saturated
LEAST_ACTIVITY = 0.01  # SageMaker's threshold_inactivity, 1 %: a unit active on fewer samples is inactive
EXTREMES = {
    "Tanh": (-9.4999, 9.4999),
    "Sigmoid": (-23.0, 16.99999),
}  # SageMaker's SaturatedActivation, inputs
ACTIVATIONS = (nn.ReLU, nn.GELU, nn.ELU, nn.SiLU, nn.Tanh, nn.Sigmoid, nn.LeakyReLU)


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterSeen:
    """One parameter and its gradient at one step; `update_ratio` is |step| / |weight|."""

    name: str
    matrix: bool
    count: int
    grad_norm: float
    grad_mean_abs: float
    grad_zero_share: float
    grad_spread: float | None
    """95th less 5th percentile; None unless a matrix."""
    update_ratio: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivationSeen:
    """The output of one leaf module at one step."""

    name: str
    kind: str
    near_zero: float
    """Share of elements."""
    near_one: float
    inactive_units: float
    """Share of units active on fewer than 1 % of the samples."""
    saturated_units: float
    """Share of units whose input lies beyond the extremes on more than 99 % of the samples."""
    input_variance: float | None
    """Of an activation module's input; None for other modules."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSeen:
    """One step of training. `finite` is false if the loss or any gradient is no finite number."""

    loss: float
    finite: bool
    parameters: tuple[ParameterSeen, ...]
    activations: tuple[ActivationSeen, ...]


Observation = tuple[StepSeen, ...]


def observe(problem: Problem, steps: int = STEPS) -> Observation:
    """The first steps of training, seen through hooks; stops at the first loss that is no number."""
    case, seen = build(problem), []
    assert case.optimizer is not None
    watch = _Watch(case.model)
    for (inputs, targets), _ in zip(problem_batches(problem), range(steps), strict=False):
        now = loss(case.model(inputs), targets)
        case.optimizer.zero_grad()
        now.backward()
        before = {name: p.detach().clone() for name, p in case.model.named_parameters()}
        case.optimizer.step()
        parameters = tuple(_parameters(case.model, before))
        finite = math.isfinite(now.item()) and all(math.isfinite(p.grad_norm) for p in parameters)
        seen.append(
            StepSeen(loss=now.item(), finite=finite, parameters=parameters, activations=tuple(watch.empty()))
        )
        if not math.isfinite(now.item()):
            break
    return tuple(seen)


def _parameters(model: nn.Module, before: dict[str, Tensor]) -> Iterator[ParameterSeen]:
    for name, parameter in model.named_parameters():
        if parameter.grad is None:
            continue
        grad, old = parameter.grad.float(), before[name].float()
        yield ParameterSeen(
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
    """95th less 5th percentile."""
    low, high = torch.quantile(values.flatten(), torch.tensor([0.05, 0.95])).tolist()
    return float(high - low)


class _Watch:
    """Forward hooks on every leaf module with parameters and on every activation module."""

    def __init__(self, model: nn.Module) -> None:
        self.seen: dict[str, ActivationSeen] = {}
        for name, module in model.named_modules():
            owns = next(module.parameters(recurse=False), None) is not None
            if next(module.children(), None) is None and (owns or isinstance(module, ACTIVATIONS)):
                module.register_forward_hook(self._hook(name))

    def _hook(self, name: str) -> Any:
        @torch.no_grad()
        def hook(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
            if isinstance(output, Tensor):
                self.seen[name] = see(name, module, inputs[0].float(), output.float())

        return hook

    def empty(self) -> list[ActivationSeen]:
        """What was seen since the last time, in order of the calls."""
        found, self.seen = list(self.seen.values()), {}
        return found


def see(name: str, module: nn.Module, inputs: Tensor, output: Tensor) -> ActivationSeen:
    """The figures of one module's output."""
    kind = type(module).__name__
    low, high = EXTREMES.get(kind, (-math.inf, math.inf))
    saturated = per_unit((inputs < low) | (inputs > high)) if kind in EXTREMES else None
    size = output.abs()
    return ActivationSeen(
        name=name,
        kind=kind,
        near_zero=float((size < NEAR_ZERO).float().mean()),
        near_one=float((size > NEAR_ONE).float().mean()),
        inactive_units=float((per_unit(output > 0) < LEAST_ACTIVITY).float().mean()),
        saturated_units=0.0 if saturated is None else float((saturated > 1 - LEAST_ACTIVITY).float().mean()),
        input_variance=float(inputs.var()) if isinstance(module, ACTIVATIONS) else None,
    )


def per_unit(flags: Tensor) -> Tensor:
    """The share of true flags of each unit: a channel of an image, else a feature."""
    unit = 1 if flags.ndim == 4 else flags.ndim - 1
    return flags.float().transpose(0, unit).flatten(1).mean(1)
