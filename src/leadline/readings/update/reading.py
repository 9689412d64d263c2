"""The update reading: one real step of the user's optimiser, measured and undone."""

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
from leadline.readings.update.direction import Step, find_direction
from leadline.readings.update.limits import Line, Sharpness, along_the_step, find_limits, largest_lr, search
from leadline.readings.update.probe import BeforeStep, StepProbe, open_probe
from leadline.records import BlockStep, DepthRange, Gap, ParameterStep, Profile, Update
from leadline.tracer.optimizer import read_optimizer

ROUNDING_ULPS = 4.0  # ours: a loss that is a mean of many terms is off by a few units in the last place
SHORTEST = 1e-6  # ours: the multiple to try where the outputs of the whole step are not finite
RESPONSE = 0.01  # relative change of the outputs that still is infinitesimal: its square is 1e-4 (derived)


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What the passes around one step showed."""

    loss: float
    noise: float
    slope: float
    measured: float
    change: float
    relative: float | None
    response: float | None
    blocks_response: float | None
    line: Line
    step: Step
    parameters: tuple[ParameterStep, ...]
    before: list[Tensor]


def read_update(
    case: Case,
    profile: Profile | None,
    *,
    sharpness: bool = False,
    responses: bool = False,
    ranges: bool = False,
    before_step: BeforeStep | None = None,
) -> Update:
    """Step for real, look at what it did, and put everything back; `profile` says where on the depth axis it was.

    `sharpness` asks for the largest curvature, `responses` for the change of the outputs by an infinitesimal step,
    `ranges` for what each range of depth does alone (a forward pass for each of four); the first includes the last.
    """
    with open_probe(case) as probe:
        optimizer = read_optimizer(probe.optimizer, probe.model_index)
        seen = _step(probe, profile, before_step, responses=responses or sharpness)
        parameters = seen.parameters
        lr = largest_lr(probe.optimizer)
        curvature, notes = _curvature(probe, seen, lr, optimizer.steps if sharpness else None)
        limits = find_limits(probe.optimizer, seen.line, curvature, lr, optimizer.steps)
        by_block = direction.by_block(parameters, profile)
        return Update(
            optimizer=optimizer.name,
            steps=optimizer.steps,
            lr=lr,
            loss=seen.loss,
            predicted_loss_change=seen.slope,
            measured_loss_change=seen.measured,
            ratio=_ratio(seen),
            loss_resolution=seen.noise,
            function_change=seen.change,
            function_change_relative=seen.relative,
            function_response=seen.response,
            blocks_response=seen.blocks_response,
            grad_square=sum(each.grad_norm**2 for each in parameters),
            update_norm=math.sqrt(sum(each.update_norm**2 for each in parameters)),
            weight_norm=math.sqrt(sum(each.weight_norm**2 for each in parameters)),
            line=seen.line.points,
            parting=seen.line.parting,
            parting_is_bound=seen.line.is_bound,
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
            ranges=_ranges(probe, seen, by_block, measured=sharpness or ranges),
            gaps=(*notes, *_not_finite(seen), *_gaps(probe)),
        )


def _ratio(seen: Seen) -> float | None:
    return seen.measured / seen.slope if abs(seen.slope) > seen.noise else None


def _step(
    probe: StepProbe, profile: Profile | None, before_step: BeforeStep | None, *, responses: bool
) -> Seen:
    loss, before, grads = probe.gradient()
    probe.step(before_step)
    deltas = sums.differences(probe.parameters, probe.start)
    first, after = probe.look()
    slope = sum(sums.inner_products(grads, deltas))
    change = sums.root_mean_square(_minus(after, before))
    size = sums.root_mean_square(before)
    relative = change / size if size else None
    noise = ROUNDING_ULPS * _epsilon(probe, loss) * abs(loss.item())

    along = find_direction(probe, grads, deltas)

    def look(multiple: float) -> float:
        probe.move(along.deltas, multiple / along.factor)
        return probe.look()[0]

    def respond(only: set[str] | None) -> float:
        probe.move(deltas, short, only)
        return sums.root_mean_square(_minus(probe.look()[1], before)) / short

    line = search(look, loss.item(), along.slope, first, noise)
    short = _short(relative)
    step = Step(names=probe.names, start=probe.start, grads=grads, deltas=deltas)
    inside = set() if profile is None else {p for b in direction.repeated_blocks(profile) for p in b.params}
    return Seen(
        loss=loss.item(),
        noise=noise,
        slope=slope,
        measured=first - loss.item(),
        change=change,
        relative=relative,
        response=None if not responses else change if short == 1.0 else respond(None),
        blocks_response=respond(inside) if responses and inside else None,
        line=line,
        step=step,
        parameters=direction.by_parameter(step, () if profile is None else profile.blocks),
        before=before,
    )


def _short(relative: float | None) -> float:
    """A multiple of the step so short that the outputs answer linearly."""
    if relative is None or relative <= RESPONSE:
        return 1.0
    return RESPONSE / relative if math.isfinite(relative) else SHORTEST


def _curvature(
    probe: StepProbe, seen: Seen, lr: float | None, steps: int | None
) -> tuple[Sharpness | None, list[Gap]]:
    """The largest curvature if it is asked for (then `steps` is given) and can be had, else that along the step."""
    along = along_the_step(seen.line, lr)
    if steps is None:
        return along, []
    found, note = largest_curvature(probe, steps)
    gaps = [Gap(what="the largest curvature", why=note)] if note else []
    if found is None or not math.isfinite(found):
        return along, gaps
    return Sharpness(value=found, kind="lanczos"), gaps


def _ranges(
    probe: StepProbe, seen: Seen, blocks: Sequence[BlockStep], *, measured: bool
) -> tuple[DepthRange, ...]:
    """Parts of the step by range of depth; with `measured`, how each range alone changes the function and the loss."""
    found = direction.by_range(blocks, seen.slope)
    if not measured:
        return found
    return tuple(
        _alone(probe, seen, each, {block.name for block in part})
        for each, part in zip(found, direction.quarters(blocks), strict=True)
    )


def _alone(probe: StepProbe, seen: Seen, part: DepthRange, blocks: set[str]) -> DepthRange:
    """The range with what the step does if only its parameters make it."""
    names = {each.name for each in seen.parameters if each.block in blocks}
    probe.move(seen.step.deltas, 1.0, names)
    loss, outputs = probe.look()
    return msgspec.structs.replace(
        part,
        function_change=sums.root_mean_square(_minus(outputs, seen.before)),
        loss_change=loss - seen.loss,
    )


def _minus(after: list[Tensor], before: list[Tensor]) -> list[Tensor]:
    return [a - b for a, b in zip(after, before, strict=True)]


def _epsilon(probe: StepProbe, loss: Tensor) -> float:
    """Relative spacing of the coarsest number type that takes part."""
    kinds: set[Any] = {loss.dtype, *(each.dtype for each in probe.parameters if each.is_floating_point())}
    device = loss.device.type
    if torch.is_autocast_enabled(device):
        kinds.add(torch.get_autocast_dtype(device))
    return max(torch.finfo(kind).eps for kind in kinds)


def _not_finite(seen: Seen) -> list[Gap]:
    """A sick model is measured as what it is; but what could not be measured is said."""
    if math.isfinite(seen.loss) and math.isfinite(seen.slope):
        return []
    what = f"the loss is {seen.loss}" if not math.isfinite(seen.loss) else "the gradient is not finite"
    why = f"{what} before the step; `leadline.check` names the first op whose result is no number"
    return [Gap(what="the change of the loss", why=why)]


def _gaps(probe: StepProbe) -> list[Gap]:
    held = set(probe.names)
    left = [
        named.names[0]
        for named in probe.model_index.parameters.values()
        if named.item.requires_grad and named.names[0] not in held
    ]
    why = "the optimiser does not hold them, so that its step leaves them where they are"
    return [Gap(what="trainable parameters that do not move", why=why, where=tuple(left))] if left else []
