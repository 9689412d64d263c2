"""The chain rule as a waterfall: the log-gain of the gradient from loss to input, split by kind of op."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from leadline.drawing.bars import Bar, waterfall
from leadline.drawing.numbers import factor, plural, power
from leadline.records import Block, Factor, Profile

TITLES = {
    "activation": "activation slopes",
    "weight": "weights",
    "norm": "norms",
    "attention": "attention",
    "product": "products",
    "skip": "skips",
    "branch": "branches",
    "scale": "scales, biases",
    "pool": "pooling",
    "loss": "loss",
    "rest": "other ops",
}
LEFT_OVER = 1e-3  # e-folds: rounding of the stored logarithms stays far below (derived: 1e-15 a factor)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """What one kind of op did over the whole axis, in e-folds."""

    kind: str
    ops: int
    backward: float
    theory: float | None
    strongest: str
    """The block in which it did most, and how much."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """The causes of one stream, what they sum to, and what was measured."""

    stream: int
    causes: tuple[Cause, ...]
    total: float
    measured: float | None
    first: str
    last: str

    @property
    def unexplained(self) -> float | None:
        """What was measured and no factor accounts for; None where there is nothing to speak of."""
        left = None if self.measured is None else self.measured - self.total
        return left if left is not None and abs(left) > LEFT_OVER else None


def splits_of(profile: Profile) -> list[Split]:
    """One a stream whose gradient was attributed."""
    found = [_split(profile, index) for index in range(len(profile.streams))]
    return [split for split in found if split is not None]


def _split(profile: Profile, stream: int) -> Split | None:
    """From behind the last block of the stream to behind its first, so over the blocks after the first."""
    inside = [i for i, block in enumerate(profile.blocks) if block.stream == stream]
    if profile.attribution is None or len(inside) < 2:
        return None
    factors = [each for each in profile.attribution.within(inside[1:]) if each.backward is not None]
    finite = [each for each in factors if math.isfinite(each.backward or 0.0)]
    if not finite or len(finite) < len(factors):
        return None
    causes = tuple(_cause(kind, finite, profile.blocks) for kind in _kinds(finite))
    return Split(
        stream=stream,
        causes=causes,
        total=sum(cause.backward for cause in causes),
        measured=_change(profile.blocks[inside[0]], profile.blocks[inside[-1]]),
        first=profile.blocks[inside[0]].name,
        last=profile.blocks[inside[-1]].name,
    )


def _kinds(factors: Iterable[Factor]) -> list[str]:
    """Those that did most first; what is left over last."""
    sums: dict[str, float] = {}
    for each in factors:
        sums[each.kind] = sums.get(each.kind, 0.0) + (each.backward or 0.0)
    return sorted(sums, key=lambda kind: (kind == "rest", -abs(sums[kind])))


def _cause(kind: str, factors: Sequence[Factor], blocks: Sequence[Block]) -> Cause:
    mine = [each for each in factors if each.kind == kind]
    theory = [each.backward_theory for each in mine]
    most = max(mine, key=lambda each: abs(each.backward or 0.0))
    return Cause(
        kind=kind,
        ops=sum(each.ops for each in mine),
        backward=sum(each.backward or 0.0 for each in mine),
        theory=None if None in theory else sum(each or 0.0 for each in theory),
        strongest=f"{most.op or kind} in {blocks[most.block].name}, {power(most.backward or 0.0)}",
    )


def _change(first: Block, last: Block) -> float | None:
    r"""$\ln(G_{first} / G_{last})$ of the squared gradient, as measured behind the two blocks."""
    powers = [each.backward_ms * each.elements for each in (first, last) if each.backward_ms is not None]
    if len(powers) < 2 or not all(0 < each < math.inf for each in powers):
        return None
    return math.log(powers[0]) - math.log(powers[1])


def drawn(split: Split) -> str:
    """The waterfall as SVG."""
    parts = [_part(cause) for cause in split.causes]
    if split.unexplained is not None:
        parts.append(Bar(label="not attributed", value=split.unexplained, said=power(split.unexplained)))
    total = split.total if split.measured is None else split.measured
    whole = Bar(label="in all", value=total, said=power(total), tone="total")
    return waterfall(parts, whole, label="Change of the squared gradient from loss to input, by kind of op")


def _part(cause: Cause) -> Bar:
    said = power(cause.backward)
    a_time = factor(math.exp(cause.backward / cause.ops)) if cause.ops > 1 else ""
    each = f", {a_time} each" if a_time else ""
    return Bar(
        label=TITLES[cause.kind],
        value=cause.backward,
        said=said,
        theory=cause.theory,
        hint=f"{TITLES[cause.kind]}: {said} over {plural(cause.ops, 'op')}{each}; most by {cause.strongest}",
    )
