"""Forecast how the first step and the signal change with depth, width and batch, and how deep a network can go."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import torch
from msgspec.structs import replace

from leadline.case import Case, Progress
from leadline.errors import InputError
from leadline.ops.optimizers import Family, family_of
from leadline.readings import depth_law
from leadline.readings.depth_law import by_seed, find_depth_limits, fit_exponent, is_wide, log_parting
from leadline.readings.family import Build, FamilyPlan, check_axis_acts, check_counts
from leadline.readings.gradient_noise import advise_noise, read_noise, sample_noise
from leadline.readings.profile import read_profile
from leadline.readings.scaling import (
    TensorShape,
    advise_along,
    batch_rules,
    fit_along,
    kinds_of,
    point_along,
    read_decay_memory,
    shapes_of,
    spectral_rate_power,
    width_rules,
)
from leadline.readings.update.reading import read_update
from leadline.records import (
    AxisLaw,
    DecayMemory,
    DepthBlock,
    DepthLimit,
    DepthPoint,
    Exponent,
    Forecast,
    Profile,
    Update,
)
from leadline.records.forecast import MAX_FLAT_EXPONENT, Axis
from leadline.tracer.restore import random_states, restore_random
from leadline.tracer.trace import trace


def measure(case: Case) -> tuple[Profile, Update, int]:
    """The profile and the update of a case, and the number of ops of its pass."""
    case_trace = trace(case.model, case.inputs, case.targets, case.loss, case.optimizer)
    profile, _ = read_profile(case_trace)
    return profile, read_update(case, profile, responses=True), len(case_trace.ops)


def point_of(profile: Profile, update: Update, depth: int, seed: int) -> DepthPoint:
    """The quantities of one network that a depth law is fitted on."""
    body = body_of(profile)
    inner = [block for block in update.blocks if block.repeated]
    return DepthPoint(
        depth=depth,
        seed=seed,
        parameters=profile.parameters,
        blocks=len(profile.blocks),
        loss=update.loss,
        grad_square=sum(block.grad_square for block in inner) if inner else update.grad_square,
        loss_change=sum(block.predicted for block in inner) if inner else update.predicted_loss_change,
        function_change=update.blocks_response if inner else update.function_response,
        total_loss_change=update.predicted_loss_change,
        total_function_change=update.function_response,
        ratio=update.ratio,
        parting=update.safe_lr / update.lr if update.safe_lr and update.lr else update.parting,
        parting_is_bound=update.parting_is_bound,
        forward_e_folds=_change([block.forward_ms for block in body]),
        backward_e_folds=_change([_power(block) for block in body[::-1]]),
        normalized=sum(block.norms > 0 for block in body) > len(body) / 2,
    )


def body_of(profile: Profile) -> list[DepthBlock]:
    """The blocks of the longest stream without the head, whose output differs in meaning and size."""
    if not profile.streams:
        return []
    index = max(range(len(profile.streams)), key=lambda each: profile.streams[each].blocks)
    blocks = [block for block in profile.blocks if block.stream == index]
    return blocks[:-1] if profile.streams[index].joins is None else blocks


def _power(block: DepthBlock) -> float | None:
    return None if block.backward_ms is None else block.backward_ms * block.elements


def _change(moments: list[float | None]) -> float | None:
    """Natural logarithm of last over first; infinite if the last is infinite or zero, NaN if it is NaN."""
    known = [moment for moment in moments if moment is not None]
    if len(known) < 2 or not known[0] > 0:
        return None
    if not math.isfinite(known[-1]):
        return math.inf if math.isinf(known[-1]) else math.nan
    return math.log(known[-1] / known[0]) if known[-1] > 0 else -math.inf


# What a depth law implies in words: how the rate must fall, how deep the family goes, which scheme makes it flat.

# Derived: halfway between flat and the -1/2 that separates the schemes of SGD from those of Adam.
MAX_LAZY_EXPONENT = -0.25
FLAT_SCHEMES: dict[Family, str] = {
    "sgd": "scale the branches by 1/sqrt(N) (leadline.nn: deepnorm, residual-sqrt) so that the step is flat in depth",
    "adam": "scale the branches by 1/N (leadline.nn: residual-linear, keel, deepnorm-adam) so that the "
    "step is flat in depth",
}


NO_BRANCHES = "without skip connections there is no branch to scale: lower the rate, or use residual blocks"


def advise(
    exponents: Mapping[str, Exponent], limits: Sequence[DepthLimit], scaling: str, deepest: int
) -> tuple[str, ...]:
    """Advice, the most urgent first; `scaling` says what makes the step independent of depth."""
    sentences = [_depth(limits, deepest)]
    change = exponents.get("function_change")
    if change is not None:
        sentences += _rate(change, scaling)
    sentences += [f"{limit.message} ({_how(limit)})" for limit in limits[1:]]
    return tuple(sentences)


def _depth(limits: Sequence[DepthLimit], deepest: int) -> str:
    if not limits:
        return f"no limit found: nothing measured up to depth {deepest} fails at larger depths"
    nearest = limits[0]
    return f"{nearest.message} ({_how(nearest)})"


def _how(limit: DepthLimit) -> str:
    origin = "extrapolated" if limit.extrapolated else "measured"
    if limit.low is None or limit.high is None:
        return origin
    return f"{origin}; 95 % interval {limit.low:.3g} to {limit.high:.3g}"


def _rate(change: Exponent, scaling: str) -> list[str]:
    step, power = "the step of the blocks changes the function", f"depth^{change.value:+.2f}"
    remedy = [scaling] if scaling else []
    if change.verdict == "unclear":
        return [
            f"{step} like {power}, but the seeds disagree too much to say more: use more seeds or wider networks"
        ]
    if change.verdict == "grows" and change.value >= MAX_FLAT_EXPONENT:
        growth = f"{step} like {power}: at a fixed rate deeper networks take larger steps"
        return [f"{growth}; lower the rate like depth^{-change.value:.2f}", *remedy]
    if change.verdict == "falls" and change.value < MAX_LAZY_EXPONENT:
        decline = f"{step} less with depth ({power}): the blocks learn little and the ends do the work"
        return [f"{decline}; you can raise the rate of the blocks like depth^{-change.value:.2f}", *remedy]
    return [f"{step} by about as much at every depth ({power}): keep the rate"]


# The public functions: measure a family at several depths, or extrapolate from the blocks of one model.


def forecast_family(  # noqa: PLR0913  (the names of the public contract)
    build: Build,
    depths: Sequence[int] | None = None,
    *,
    widths: Sequence[int] | None = None,
    batches: Sequence[int] | None = None,
    steps: int | None = None,
    seeds: int = 3,
    progress: Progress | None = None,
) -> Forecast:
    """Measure the first step of the networks of `build` along each axis, and fit how it changes."""
    plan = FamilyPlan(build, {"depth": depths, "width": widths, "batch": batches})
    check_counts(seeds, steps)
    report = _Count(progress, sum(map(len, plan.values.values())) * seeds)
    before = random_states()
    try:
        found = _measure_depths(plan, seeds, report) if "depth" in plan.values else None
        laws = tuple(_measure_axis(plan, axis, seeds, report) for axis in plan.values if axis != "depth")
        memory = None if steps is None else _decay_memory(plan, steps)
        if found is None:
            torch.manual_seed(0)
            profile, update, _ = measure(plan.case())
            found = _without_depths(profile, update, seeds)
    finally:
        restore_random(before)
    report.finish()
    return replace(found, laws=laws, decay_memory=memory)


class _Count:
    """Says before each network how many are done."""

    def __init__(self, progress: Progress | None, total: int) -> None:
        self.progress, self.total, self.done = progress, total, 0

    def next(self, text: str) -> None:
        if self.progress is not None:
            self.progress(self.done, self.total, text)
        self.done += 1

    def finish(self) -> None:
        if self.progress is not None:
            self.progress(self.total, self.total, "")


def _measure_depths(plan: FamilyPlan, seeds: int, report: _Count) -> Forecast:
    depths = plan.values["depth"]
    points: list[DepthPoint] = []
    sizes = set()
    for depth in depths:
        for seed in range(seeds):
            report.next(f"depth {depth}, seed {seed}")
            torch.manual_seed(seed)
            profile, update, ops = measure(plan.case(depth=depth))
            points.append(point_of(profile, update, depth, seed))
            sizes.add((depth, profile.parameters, ops))
        _check_grows(sizes)
    exponents = fit_exponents(points, depths)
    limits = find_depth_limits(points, depths, update.optimizer)
    return _forecast((profile, update), points, exponents, limits, depths=depths, seeds=seeds)


def _measure_axis(plan: FamilyPlan, axis: Axis, seeds: int, report: _Count) -> AxisLaw:
    """Measure the networks along width or batch, the other axes at their base."""
    values = plan.values[axis]
    updates: list[tuple[Update, Case, int, int]] = []
    shapes: dict[int, dict[str, TensorShape]] = {}
    noise = []
    for value in values:
        for seed in range(seeds):
            report.next(f"{axis} {value}, seed {seed}")
            torch.manual_seed(seed)
            case = plan.case(**{axis: value})
            updates.append((measure(case)[1], case, value, seed))
            shapes.setdefault(value, shapes_of(case.model))
            if axis == "batch" and value == values[-1]:
                noise.append(sample_noise(case))
        check_axis_acts(axis, updates)
    kinds = kinds_of(shapes[values[0]], shapes[values[-1]]) if axis == "width" else {}
    points = tuple(point_along(update, case, kinds, value, seed) for update, case, value, seed in updates)
    exponents = fit_along(points, values)
    update, case, _, _ = updates[0]
    if axis == "width":
        rules = width_rules(exponents, spectral_rate_power(case))
        advice, batch_noise = advise_along(axis, values, exponents, rules, update.lr), None
    else:
        groups = [group for optimizer in case.optimizers for group in optimizer.param_groups]
        rules = batch_rules(
            update.optimizer,
            decays=any(group.get("weight_decay") for group in groups),
            has_epsilon=family_of(update.optimizer) == "adam" and any("eps" in group for group in groups),
        )
        batch_noise = read_noise([each for each in noise if each is not None])
        advice = (
            *advise_noise(batch_noise, values, update.optimizer, update.lr, exponents.get("grad_square")),
            *advise_along(axis, values, exponents, rules, update.lr),
        )
    return AxisLaw(
        axis=axis,
        values=values,
        base={name: each for name, each in plan.base.items() if name != axis},
        points=points,
        exponents=exponents,
        rules=rules,
        advice=advice,
        noise=batch_noise,
    )


def _decay_memory(plan: FamilyPlan, steps: int) -> DecayMemory | None:
    torch.manual_seed(0)
    return read_decay_memory(plan.case(), steps)


def _without_depths(profile: Profile, update: Update, seeds: int) -> Forecast:
    """A forecast that says nothing about depth."""
    return Forecast(
        model=profile.model,
        optimizer=update.optimizer,
        lr=update.lr,
        depths=(max(len(profile.blocks), 1),),
        seeds=seeds,
        from_one_model=False,
        points=(),
        exponents={},
        limits=(),
        max_depth=None,
        max_depth_low=None,
        max_depth_high=None,
        safe_depth=None,
        advice=(),
    )


def fit_exponents(points: Sequence[DepthPoint], depths: Sequence[int]) -> dict[str, Exponent]:
    """The exponent of each quantity that is positive somewhere."""
    readers: dict[str, Callable[[DepthPoint], float | None]] = {
        "grad_square": lambda point: _log(point.grad_square),
        "loss_change": lambda point: _log(-point.loss_change),
        "function_change": lambda point: _log(point.function_change),
        "total_loss_change": lambda point: _log(-point.total_loss_change),
        "total_function_change": lambda point: _log(point.total_function_change),
        "linear_range": log_parting,
        "forward_growth": lambda point: point.forward_e_folds,
        "backward_growth": lambda point: point.backward_e_folds,
    }
    fits = {name: fit_exponent(by_seed(points, read), depths) for name, read in readers.items()}
    return {name: exponent for name, exponent in fits.items() if exponent is not None}


def _log(value: float | None) -> float | None:
    return math.log(value) if value is not None and 0 < value < math.inf else None


def _forecast(
    last: tuple[Profile, Update],
    points: Sequence[DepthPoint],
    exponents: dict[str, Exponent],
    limits: Sequence[DepthLimit],
    *,
    depths: tuple[int, ...],
    seeds: int,
) -> Forecast:
    profile, update = last
    nearest = next((limit for limit in limits if limit.cause != "promise"), None)
    return Forecast(
        model=profile.model,
        optimizer=update.optimizer,
        lr=update.lr,
        depths=depths,
        seeds=seeds,
        from_one_model=seeds == 0,
        points=tuple(points),
        exponents=exponents,
        limits=tuple(limits),
        max_depth=None if nearest is None else _whole(nearest),
        max_depth_low=None if nearest is None else nearest.low,
        max_depth_high=None if nearest is None else nearest.high,
        safe_depth=_whole(limits[0]) if limits else None,
        advice=advise(exponents, limits, _scaling(profile, update), depths[-1]),
        undecided=nearest is not None and is_wide(nearest),
    )


def _whole(limit: DepthLimit) -> int | None:
    return None if is_wide(limit) else max(int(limit.depth), 0)


def _scaling(profile: Profile, update: Update) -> str:
    """Advice that makes the step flat in depth; a network without branches has nothing to scale."""
    family = family_of(update.optimizer)
    if family is None:
        return ""
    return FLAT_SCHEMES[family] if any(block.residual for block in profile.blocks) else NO_BRANCHES


def extrapolate_case(case: Case, *, steps: int | None = None) -> Forecast:
    """A forecast from the repeated blocks of one model; `steps` is the planned length of the run."""
    profile, update, _ = measure(case)
    repeated = depth_law.repeated_steps(profile, update)
    point = point_of(profile, update, len(repeated), 0)
    exponents = depth_law.exponents_of(repeated)
    limits = depth_law.limits_of(point, len(repeated), exponents, update.optimizer)
    found = _forecast((profile, update), [point], exponents, limits, depths=(len(repeated),), seeds=0)
    return found if steps is None else replace(found, decay_memory=read_decay_memory(case, steps))


def _check_grows(sizes: set[tuple[int, int, int]]) -> None:
    """Raise as soon as two depths give the same network, which has no depth law."""
    depths = {depth for depth, _, _ in sizes}
    if len(depths) == 2 and len({size[1:] for size in sizes}) == 1:
        (_, parameters, ops), *_ = sizes
        raise InputError(
            expected="a build(depth) that builds deeper networks for larger depths",
            got=f"{parameters} parameters and {ops} operations at both depths {sorted(depths)}",
            fix="use the argument `depth` in build: repeat the block `depth` times",
        )
