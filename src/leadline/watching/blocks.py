"""One number a block of the depth axis, out of the profile of a sampled pass."""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable

from leadline.alarms.history import UNKNOWN
from leadline.records import Attention, Block, Profile

AXIS = "blocks"
NOT_MEASURED = UNKNOWN  # none of these numbers is negative; NaN means measured, and it was NaN
Numbers = dict[str, "array[float]"]


def block_labels(profile: Profile) -> tuple[str, ...]:
    return tuple(block.name for block in profile.blocks)


def block_numbers(profile: Profile) -> Numbers:
    """Second moments forward and backward, branch against skip, likeness, dead and saturated units, attention."""
    found = {
        name: array("f", [_or_missing(get(block)) for block in profile.blocks])
        for name, get in _OF_BLOCK.items()
    }
    attentions = profile.facts.attentions if profile.facts is not None else ()
    for name, of_attention in _OF_ATTENTION.items():
        found[name] = _strongest(len(profile.blocks), attentions, of_attention)
    return {name: values for name, values in found.items() if any(each != NOT_MEASURED for each in values)}


def _or_missing(value: float | None) -> float:
    return NOT_MEASURED if value is None else value


def _branch_skip(block: Block) -> float | None:
    r"""$\sqrt{E[b^2] / E[s^2]}$ of branch $b$ and skip $s$."""
    found = block.residual
    if found is None or found.branch_ms is None or not found.skip_ms:
        return None
    return math.sqrt(found.branch_ms / found.skip_ms) if found.branch_ms >= 0 else math.nan


def _dead(block: Block) -> float | None:
    return block.units.dead / block.units.count if block.units is not None and block.units.count else None


def _saturated(block: Block) -> float | None:
    units = block.units
    return (
        None if units is None or units.saturated is None or not units.count else units.saturated / units.count
    )


_OF_BLOCK: dict[str, Callable[[Block], float | None]] = {
    "forward_ms": lambda block: block.forward_ms,
    "backward_ms": lambda block: block.backward_ms,
    "branch_skip": _branch_skip,
    "likeness": lambda block: block.likeness,
    "dead": _dead,
    "saturated": _saturated,
}


def _entropy(attention: Attention) -> float | None:
    r"""$-\ln \sum p^2$ (Rényi's, of order 2): 0 if one of $n$ keys gets everything, $\ln n$ if all get the same."""
    return -math.log(attention.purity) if attention.purity > 0 else None


_OF_ATTENTION: dict[str, Callable[[Attention], float | None]] = {
    "attention_logit": lambda attention: attention.logit_max,
    "attention_entropy": _entropy,
}


def _strongest(
    blocks: int, attentions: tuple[Attention, ...], get: Callable[[Attention], float | None]
) -> array[float]:
    """The largest of a block's attentions; of entropies the largest too, as all of them must fall for a collapse."""
    found = array("f", [NOT_MEASURED] * blocks)
    for each in attentions:
        value = get(each)
        if 0 <= each.block < blocks and value is not None:
            found[each.block] = max(found[each.block], value)
    return found
