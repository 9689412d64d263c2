"""How large the optimiser's first steps are, by its rates, the weights and the gradients alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from leadline.records import Pace, Parameter, ParamGroup, Trace


@dataclass(frozen=True, slots=True)
class Held:
    """A trainable parameter with the rate, the momentum and the decay that its group gives it."""

    parameter: Parameter
    lr: float
    momentum: float
    decay: float


def read_pace(trace: Trace) -> Pace | None:
    """None without an optimiser, without a rate, or while a warm-up holds the rate at zero."""
    if trace.optimizer is None:
        return None
    held = _held(trace, trace.optimizer.groups)
    matrices = [each for each in held if len(each.parameter.shape) > 1 and each.parameter.ms]
    if not matrices or max(each.lr for each in held) <= 0:
        return None
    return Pace(
        lr=max(each.lr for each in held),
        matrices=len(matrices),
        scale_free_relative=median(each.lr / _rms(each.parameter.ms) for each in matrices),
        linear_relative=median(
            each.lr * _rms(each.parameter.grad_ms) / _rms(each.parameter.ms) / (1 - each.momentum)
            for each in matrices
        ),
        scale_free_loss_change=sum(each.lr * _absolute(each.parameter) for each in held),
        linear_loss_change=sum(
            each.lr * (each.parameter.grad_ms or 0.0) * each.parameter.count / (1 - each.momentum)
            for each in held
        ),
        decay=max(each.decay for each in held),
    )


def _held(trace: Trace, groups: Sequence[ParamGroup]) -> list[Held]:
    by_name = {name: group for group in groups for name in group.parameters}
    found = []
    for parameter in trace.parameters:
        group = next(
            (by_name[name] for name in (parameter.name, *parameter.aliases) if name in by_name), None
        )
        if (
            group is not None
            and group.lr is not None
            and parameter.trainable
            and parameter.grad_ms is not None
        ):
            momentum = group.options.get("momentum", 0.0)
            kept = float(momentum) if isinstance(momentum, int | float) and 0 <= momentum < 1 else 0.0
            found.append(Held(parameter, group.lr, kept, group.lr * group.weight_decay / (1 - kept)))
    return found


def _absolute(parameter: Parameter) -> float:
    r"""$\lVert g \rVert_1$ of a Gaussian gradient of the measured size."""
    return parameter.count * _rms(parameter.grad_ms) * math.sqrt(2 / math.pi)


def _rms(ms: float | None) -> float:
    return math.sqrt(ms) if ms is not None and ms >= 0 else math.nan
