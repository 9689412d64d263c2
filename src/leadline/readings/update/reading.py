"""Makes one real step of the user's optimizer, measures it as an `Update`, and undoes it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import torch
from torch import Tensor

from leadline.case import Case
from leadline.readings.update import direction
from leadline.readings.update import tensor_sums as sums
from leadline.readings.update.curvature import largest_curvature
from leadline.readings.update.direction import StepTensors, find_direction
from leadline.readings.update.limits import (
    LossLine,
    Sharpness,
    find_rate_limits,
    largest_lr,
    search,
    sharpness_along,
)
from leadline.readings.update.low_rank import low_rank_steps
from leadline.readings.update.probe import BeforeStep, StepProbe, open_probe
from leadline.records import BlockStep, DepthRange, Gap, LowRankTerm, ParameterStep, Profile, Update
from leadline.tracer.optimizer import read_optimizer
from leadline.tracer.shield import shielded

# Heuristic: a loss that is a mean of many terms is off by a few units in the last place.
LOSS_ROUNDING_ULPS = 4.0
# Heuristic: the multiple to try when the outputs after the whole step are not finite.
FALLBACK_MULTIPLE = 1e-6
# Derived: up to this relative change of the outputs the response is linear; the next term is its square, 1e-4.
MAX_LINEAR_CHANGE = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class _Measurement:
    """What the passes before and after one step measured."""

    loss: float
    noise: float
    slope: float
    loss_change: float
    change: float
    relative: float | None
    response: float | None
    blocks_response: float | None
    line: LossLine
    step: StepTensors
    parameters: tuple[ParameterStep, ...]
    outputs: list[Tensor]
    """Outputs before the step."""


@shielded
def read_update(
    case: Case,
    profile: Profile | None,
    *,
    sharpness: bool = False,
    responses: bool = False,
    ranges: bool = False,
    before_step: BeforeStep | None = None,
) -> Update:
    """Make one step, measure what it does, and restore everything.

    `profile` places the parameters on the depth axis. `sharpness` adds the largest curvature, `responses` the change
    of the outputs by an infinitesimal step, `ranges` the effect of each range of depth alone (one forward pass for each
    of four). `sharpness` includes both others.
    """
    with open_probe(case, keeps_state=sharpness) as probe:  # the metric of the curvature is in the state
        optimizer = read_optimizer(probe.optimizer, probe.model_index)
        measurement = _measure_step(probe, profile, before_step, responses=responses or sharpness)
        parameters, line = measurement.parameters, measurement.line
        lr = largest_lr(probe.optimizer)
        curvature, notes = _curvature(probe, measurement, lr, optimizer.steps if sharpness else None)
        limits = find_rate_limits(probe.optimizer, line, curvature, lr, optimizer.steps)
        by_block = direction.by_block(parameters, profile)
        return Update(
            optimizer=optimizer.name,
            steps=optimizer.steps,
            lr=lr,
            loss=measurement.loss,
            predicted_loss_change=measurement.slope,
            measured_loss_change=measurement.loss_change,
            ratio=_ratio(measurement),
            loss_resolution=measurement.noise,
            function_change=measurement.change,
            function_change_relative=measurement.relative,
            function_response=measurement.response,
            blocks_response=measurement.blocks_response,
            grad_square=sum(each.grad_norm**2 for each in parameters),
            update_norm=math.sqrt(sum(each.update_norm**2 for each in parameters)),
            weight_norm=math.sqrt(sum(each.weight_norm**2 for each in parameters)),
            line=line.points,
            parting=line.parting,
            parting_is_bound=line.is_bound,
            sharpness=None if curvature is None else curvature.value,
            sharpness_kind=None if curvature is None else curvature.kind,
            stability_lr=limits.stability_lr,
            safe_lr=limits.safe_lr,
            safe_lr_is_bound=limits.is_bound,
            warmup_steps=limits.warmup_steps,
            confidence=limits.confidence,
            confidence_why=limits.why,
            parameters=parameters,
            blocks=by_block,
            ranges=_ranges(probe, measurement, by_block, alone=sharpness or ranges),
            low_rank=tuple(low_rank_steps(_low_rank_terms(profile), measurement.step, probe.model_index)),
            gaps=(*notes, *_non_finite_gaps(measurement), *_unmoved_gaps(probe)),
        )


def _low_rank_terms(profile: Profile | None) -> tuple[LowRankTerm, ...]:
    return () if profile is None or profile.facts is None else profile.facts.low_rank


def _ratio(measurement: _Measurement) -> float | None:
    is_visible = abs(measurement.slope) > measurement.noise
    return measurement.loss_change / measurement.slope if is_visible else None


def _measure_step(
    probe: StepProbe, profile: Profile | None, before_step: BeforeStep | None, *, responses: bool
) -> _Measurement:
    loss, outputs, grads = probe.gradient()
    probe.first_moving_step(before_step)
    blocks = () if profile is None else profile.blocks
    kept: list[Tensor] | None = None
    if before_step is None and not probe.overwrites_gradients:
        deltas, parameters = direction.exchange_gradients(probe, grads, blocks)
        first, outputs_after = probe.evaluate()
    else:
        deltas = sums.differences(probe.parameters, probe.start)
        first, outputs_after = probe.evaluate()
        kept = probe.gradient_at_start() if probe.overwrites_gradients else grads
        parameters = direction.by_parameter(_tensors(probe, deltas), kept, blocks)
    slope = sum(each.predicted for each in parameters)
    change = sums.root_mean_square(_differences(outputs_after, outputs))
    size = sums.root_mean_square(outputs)
    relative = change / size if size else None
    noise = LOSS_ROUNDING_ULPS * _epsilon(probe, loss) * abs(loss.item())

    along = find_direction(probe, deltas, slope, kept)

    def loss_at(multiple: float) -> float:
        probe.move(along.deltas, multiple / along.factor)
        try:
            return probe.evaluate()[0]
        except Exception:  # far out, the user's loss may refuse what the model returns, such as NaN
            return math.nan

    def response_of(only: set[str] | None) -> float:
        probe.move(deltas, short, only)
        return sums.root_mean_square(_differences(probe.evaluate()[1], outputs)) / short

    line = search(loss_at, loss.item(), along.slope, first, noise)
    short = _linear_multiple(relative)
    repeated = direction.repeated_blocks(profile) if profile is not None else []
    inside = {name for block in repeated for name in block.params}
    response = None
    if responses:
        response = change if short == 1.0 else response_of(None)
    return _Measurement(
        loss=loss.item(),
        noise=noise,
        slope=slope,
        loss_change=first - loss.item(),
        change=change,
        relative=relative,
        response=response,
        blocks_response=response_of(inside) if responses and inside else None,
        line=line,
        step=_tensors(probe, deltas),
        parameters=parameters,
        outputs=outputs,
    )


def _tensors(probe: StepProbe, deltas: list[Tensor]) -> StepTensors:
    return StepTensors(names=probe.names, start=probe.start, deltas=deltas)


def _linear_multiple(relative: float | None) -> float:
    """A multiple of the step so short that the outputs respond linearly."""
    if relative is None or relative <= MAX_LINEAR_CHANGE:
        return 1.0
    return MAX_LINEAR_CHANGE / relative if math.isfinite(relative) else FALLBACK_MULTIPLE


def _curvature(
    probe: StepProbe, measurement: _Measurement, lr: float | None, steps: int | None
) -> tuple[Sharpness | None, list[Gap]]:
    """The largest curvature if `steps` is given and it can be computed, else the curvature along the step."""
    along = sharpness_along(measurement.line, lr)
    if steps is None:
        return along, []
    largest, note = largest_curvature(probe, steps)
    gaps = [Gap(what="the largest curvature", why=note)] if note else []
    if largest is None or not math.isfinite(largest):
        return along, gaps
    return Sharpness(value=largest, kind="lanczos"), gaps


def _ranges(
    probe: StepProbe, measurement: _Measurement, blocks: Sequence[BlockStep], *, alone: bool
) -> tuple[DepthRange, ...]:
    """The parts of the step by range of depth; `alone` measures what each range does without the others."""
    ranges = direction.by_range(blocks, measurement.slope)
    if not alone:
        return ranges
    # A list: in a generator, a StopIteration of the user's model would become another error.
    return tuple(
        [
            _measure_alone(probe, measurement, each, {block.name for block in part})
            for each, part in zip(ranges, direction.quarters(blocks), strict=True)
        ]
    )


def _measure_alone(
    probe: StepProbe, measurement: _Measurement, part: DepthRange, blocks: set[str]
) -> DepthRange:
    """The range with the change of loss and outputs when only its parameters move."""
    names = {each.name for each in measurement.parameters if each.block in blocks}
    probe.move(measurement.step.deltas, 1.0, names)
    loss, outputs = probe.evaluate()
    return msgspec.structs.replace(
        part,
        function_change=sums.root_mean_square(_differences(outputs, measurement.outputs)),
        loss_change=loss - measurement.loss,
    )


def _differences(after: list[Tensor], before: list[Tensor]) -> list[Tensor]:
    """The changes of the outputs that kept their shape; a model that predicts lengths returns others after a step."""
    return [a - b for a, b in zip(after, before, strict=False) if a.shape == b.shape]


def _epsilon(probe: StepProbe, loss: Tensor) -> float:
    """Relative spacing of the coarsest dtype involved."""
    dtypes: set[Any] = {loss.dtype, *(each.dtype for each in probe.parameters if each.is_floating_point())}
    device = loss.device.type
    if torch.is_autocast_enabled(device):
        dtypes.add(torch.get_autocast_dtype(device))
    return max(torch.finfo(dtype).eps for dtype in dtypes)


def _non_finite_gaps(measurement: _Measurement) -> list[Gap]:
    if math.isfinite(measurement.loss) and math.isfinite(measurement.slope):
        return []
    loss = measurement.loss
    what = "the gradient is not finite" if math.isfinite(loss) else f"the loss is {loss}"
    why = f"{what} before the step; run `leadline.check` to find the first op with a non-finite result"
    return [Gap(what="the change of the loss", why=why)]


def _unmoved_gaps(probe: StepProbe) -> list[Gap]:
    moved = set(probe.names)
    unmoved = [
        named.names[0]
        for named in probe.model_index.parameters.values()
        if named.item.requires_grad and named.names[0] not in moved
    ]
    if not unmoved:
        return []
    why = "the optimizer does not hold them, so its step does not change them"
    return [Gap(what="trainable parameters that do not move", why=why, where=tuple(unmoved))]
