"""What a depth law implies, in words: how the rate must fall, how deep it goes, which scheme makes it flat."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from leadline.records import DepthLimit, Exponent
from leadline.records.forecast import FLAT
from leadline.rules.families import Family

LAZY = -0.25  # ours: half way between flat and the -1/2 that separates the schemes of SGD from those of Adam
FLAT_SCHEMES: dict[Family, str] = {
    "sgd": "branches scaled by 1/sqrt(N) (leadline.nn: deepnorm, residual-sqrt) make it flat under SGD",
    "adam": "branches scaled by 1/N (leadline.nn: residual-linear, keel, deepnorm-adam) make it flat under Adam",
}


NO_BRANCHES = "without skip connections there is no branch to scale: the rate must do it, or residual blocks"


def advise(
    exponents: Mapping[str, Exponent], limits: Sequence[DepthLimit], scaling: str, deepest: int
) -> tuple[str, ...]:
    """Sentences, the most urgent first; `scaling` says what would make the step flat in depth."""
    said = [_depth(limits, deepest)]
    change = exponents.get("function_change")
    if change is not None:
        said += _rate(change, scaling)
    said += [f"{limit.message} ({_how(limit)})" for limit in limits[1:]]
    return tuple(said)


def _depth(limits: Sequence[DepthLimit], deepest: int) -> str:
    if not limits:
        return f"no limit in sight: nothing that was measured up to depth {deepest} gives way further on"
    nearest = limits[0]
    return f"{nearest.message} ({_how(nearest)})"


def _how(limit: DepthLimit) -> str:
    seen = "extrapolated" if limit.extrapolated else "measured"
    if limit.low is None or limit.high is None:
        return seen
    return f"{seen}; 95 % interval {limit.low:.3g} to {limit.high:.3g}"


def _rate(change: Exponent, scaling: str) -> list[str]:
    step, power = "the step of the blocks changes the function", f"depth^{change.value:+.2f}"
    cure = [scaling] if scaling else []
    if change.verdict == "unclear":
        return [
            f"{step} like {power}, but the seeds disagree too much to say more: use more seeds or wider networks"
        ]
    if change.verdict == "grows" and change.value >= FLAT:
        fall = f"{step} like {power}: at a fixed rate deeper networks take ever larger steps"
        return [f"{fall}; let the rate fall like depth^{-change.value:.2f}", *cure]
    if change.verdict == "falls" and change.value < LAZY:
        slow = f"{step} ever less with depth ({power}): the blocks learn lazily, the ends do the work"
        return [f"{slow}; the rate of the blocks may grow like depth^{-change.value:.2f}", *cure]
    return [f"{step} by about as much at every depth ({power}): the rate may stay as it is"]
