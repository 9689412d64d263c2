"""How a network's first step and its signal change with depth, and how deep it can go.

measure       one network: trace and update
fit           exponents with intervals over seeds
limits        depths beyond which something gives way
extrapolate   the same from the blocks of a single model
advice        what follows, in words
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from leadline.case import Case, as_case, describe
from leadline.errors import InputError
from leadline.forecasting import extrapolate
from leadline.forecasting.advice import FLAT_SCHEMES, NO_BRANCHES, advise
from leadline.forecasting.fit import fit_exponent
from leadline.forecasting.limits import by_seed, find_limits, is_wide, log_parting
from leadline.forecasting.measure import measure, point_of
from leadline.records import DepthLimit, DepthPoint, Exponent, Forecast, Profile, Update
from leadline.rules.families import family_of
from leadline.tracing.custody import random_states, restore_random

__all__ = ["forecast"]

Build = Callable[[int], Any]
Progress = Callable[[int, int, str], object]
DEPTHS = (4, 8, 16, 32)


def forecast(
    build: Build | Case | tuple[Any, ...],
    depths: Sequence[int] = DEPTHS,
    *,
    seeds: int = 3,
    progress: Progress | None = None,
) -> Forecast:
    """Build a network at several depths, measure the first step of each, and say how deep the family can go.

    `build(depth)` returns a `leadline.Case` (or its fields as a tuple or dict) with an optimiser; it is called once for
    each depth and seed, after `torch.manual_seed`. The depth is whatever the number means to you: blocks or layers.
    A `Case` instead of a function is extrapolated from its own blocks. `progress(done, total, text)` is told before
    each network.
    """
    if not callable(build) or isinstance(build, torch.nn.Module):
        return _from_one(as_case(build))
    _check_build(build)
    _check(depths, seeds)
    before = random_states()
    try:
        points, last = _measure_all(build, depths, seeds, progress)
    finally:
        restore_random(before)
    exponents = fit_exponents(points, depths)
    limits = find_limits(points, depths, last[1].optimizer)
    return _forecast(last, points, exponents, limits, depths=tuple(depths), seeds=seeds)


def fit_exponents(points: Sequence[DepthPoint], depths: Sequence[int]) -> dict[str, Exponent]:
    """By quantity; one that was nowhere a positive number is left out."""
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
    found = {name: fit_exponent(by_seed(points, read), depths) for name, read in readers.items()}
    return {name: exponent for name, exponent in found.items() if exponent is not None}


def _log(value: float | None) -> float | None:
    return math.log(value) if value is not None and 0 < value < math.inf else None


def _measure_all(
    build: Build, depths: Sequence[int], seeds: int, progress: Progress | None
) -> tuple[list[DepthPoint], tuple[Profile, Update]]:
    points: list[DepthPoint] = []
    sizes, total = set(), len(depths) * seeds
    for depth in depths:
        for seed in range(seeds):
            if progress is not None:
                progress(len(points), total, f"depth {depth}, seed {seed}")
            torch.manual_seed(seed)
            profile, update, ops = measure(_case(build, depth))
            points.append(point_of(profile, update, depth, seed))
            sizes.add((depth, profile.parameters, ops))
        _check_grows(sizes)
    if progress is not None:
        progress(total, total, "")
    return points, (profile, update)


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
    """The scheme that makes a step flat in depth, in words; a network without branches has nothing to scale."""
    family = family_of(update.optimizer)
    if family is None:
        return ""
    return FLAT_SCHEMES[family] if any(block.residual for block in profile.blocks) else NO_BRANCHES


def _from_one(case: Case) -> Forecast:
    profile, update, _ = measure(case)
    steps = extrapolate.repeated(profile, update)
    point = point_of(profile, update, len(steps), 0)
    exponents = extrapolate.exponents_of(steps)
    limits = extrapolate.limits_of(point, len(steps), exponents, update.optimizer)
    return _forecast((profile, update), [point], exponents, limits, depths=(len(steps),), seeds=0)


def _case(build: Build, depth: int) -> Case:
    case = as_case(build(depth))
    if case.optimizer is None:
        raise InputError(
            expected="a Case with the optimiser that the network is to be trained with",
            got=f"none from build({depth})",
            fix="return leadline.Case(model, inputs, targets, loss, optimizer): rates and steps are its own",
        )
    return case


def _check_build(build: Build) -> None:
    try:
        inspect.signature(build).bind(1)
    except TypeError as error:
        raise InputError(
            expected="a function of the depth that builds the network",
            got=f"{getattr(build, '__name__', describe(build))}, which cannot be called with one number ({error})",
            fix="write def build(depth): ... that returns leadline.Case(model, inputs, targets, loss, optimizer), or "
            "pass the Case itself (forecast(build())) to extrapolate from one model",
        ) from None
    except ValueError:  # built-in callables may have no signature
        return


def _check(depths: Sequence[int], seeds: int) -> None:
    listed = list(depths) if isinstance(depths, Sequence) else []
    whole = all(isinstance(depth, int) and depth > 0 for depth in listed)
    if not whole or len(listed) < 2 or listed != sorted(set(listed)):
        raise InputError(
            expected="at least two depths, positive whole numbers, increasing",
            got=repr(tuple(listed) if listed else depths),
            fix="pass, for instance, depths=(4, 8, 16, 32); three or more make a law visible",
        )
    if seeds < 1:
        raise InputError(
            expected="at least one seed", got=repr(seeds), fix="pass seeds=3 or more for intervals"
        )


def _check_grows(sizes: set[tuple[int, int, int]]) -> None:
    """As soon as two depths are there: a network that does not change has no depth law."""
    depths = {depth for depth, _, _ in sizes}
    if len(depths) == 2 and len({size[1:] for size in sizes}) == 1:
        (_, parameters, ops), *_ = sizes
        raise InputError(
            expected="a build(depth) that makes deeper networks for larger depths",
            got=f"{parameters} parameters and {ops} operations at depths {sorted(depths)} alike",
            fix="use the argument: repeat the block depth times",
        )
