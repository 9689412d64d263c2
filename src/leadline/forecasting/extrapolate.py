r"""A forecast from the blocks of a single model: what more blocks of the same kind, unscaled, would do.

The last $n$ blocks of a stack are what a stack of $n$ blocks would be, seen from the loss. So sums over the last $n$
blocks, for growing $n$, show the power of depth in the predicted change of the loss. Where the step leaves the linear
regime is carried over as $c(N') = c(N)\,(N'/N)^{-p}$, with that power $p$: both slope and curvature along the step
are sums over blocks, the second over pairs of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from leadline.errors import InputError
from leadline.forecasting.fit import log_line
from leadline.forecasting.limits import levels
from leadline.records import BlockStep, DepthLimit, DepthPoint, Exponent, Profile, Update
from leadline.records.forecast import Cause
from leadline.rules.depth_law import REACH

FARTHEST = 1e9  # ours: nobody builds this deep, and a law read off few blocks does not hold so far
FEWEST_BLOCKS = 8  # ours: with fewer blocks their sums show the ends of the stack, not its law


def repeated(profile: Profile, update: Update) -> list[BlockStep]:
    """The steps of the repeated blocks, from the last to the first."""
    found = [each for each in update.blocks if each.repeated]
    if len(found) < FEWEST_BLOCKS:
        raise InputError(
            expected=f"a model of at least {FEWEST_BLOCKS} repeating blocks, or a function that builds it at a depth",
            got=f"{profile.model} with {len(found)} such blocks",
            fix="write def build(depth): ... that returns the Case of that depth, and pass leadline.forecast(build)",
        )
    return found[::-1]


def exponents_of(steps: Sequence[BlockStep]) -> dict[str, Exponent]:
    """Powers of the number of blocks in the gradient's square and in the predicted change of the loss."""
    readers: dict[str, Callable[[BlockStep], float]] = {
        "grad_square": lambda each: each.grad_square,
        "loss_change": lambda each: -each.predicted,
    }
    found = {name: _growth([read(each) for each in steps]) for name, read in readers.items()}
    return {name: exponent for name, exponent in found.items() if exponent is not None}


def _growth(parts: Sequence[float]) -> Exponent | None:
    total, curve = 0.0, {}
    for count, part in enumerate(parts, start=1):
        total += part
        if total > 0:
            curve[count] = math.log(total)
    depths = tuple(range(max(2, len(parts) // 4), len(parts) + 1))
    line = log_line(curve, depths)
    if line is None:
        return None
    return Exponent(value=line[0], low=None, high=None, seeds=1, depths=depths)


def limits_of(
    point: DepthPoint, blocks: int, exponents: dict[str, Exponent], optimizer: str
) -> tuple[DepthLimit, ...]:
    """Depths in blocks of the same kind."""
    found = []
    power = exponents["loss_change"].value if "loss_change" in exponents else 0.0
    if point.parting and not point.parting_is_bound and power > 0:
        for cause, (level, words) in levels(optimizer).items():
            log_depth = math.log(blocks) + math.log(point.parting / level) / power
            if log_depth < math.log(FARTHEST):
                depth = math.exp(log_depth)
                found.append(_limit(cause, depth, f"beyond about {depth:.3g} such blocks {words}"))
    changes: dict[Cause, float | None] = {
        "forward": point.forward_e_folds,
        "backward": point.backward_e_folds,
    }
    for cause, change in changes.items():
        if change is not None and abs(change) > 1.0:
            depth = blocks * REACH / abs(change) if math.isfinite(change) else blocks
            what = "activations" if cause == "forward" else "gradients"
            words = f"blocks {what} would change by more than {REACH:.0f} e-folds, if they go on as they do"
            found.append(_limit(cause, depth, f"beyond about {depth:.3g} {words}"))
    return tuple(sorted(found, key=lambda each: each.depth))


def _limit(cause: Cause, depth: float, message: str) -> DepthLimit:
    return DepthLimit(cause=cause, depth=depth, low=None, high=None, extrapolated=True, message=message)
