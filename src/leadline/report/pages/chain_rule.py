"""The chain rule as a waterfall: what each kind of op did to the gradient, and what no op accounts for."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from leadline.records import DepthBlock, Factor, Profile
from leadline.report.page import Bar, BarChart, Section
from leadline.text import factor, growth, plural, power

KIND_NAMES = {
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
# Derived: in e-folds; the rounding of the stored logarithms is about 1e-15 per factor, far below.
MIN_UNEXPLAINED = 1e-3
# Heuristic: kinds of op whose strongest block is named below the chart; more would not fit on one line.
KINDS_NAMED = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class KindShare:
    """What one kind of op did to the gradient over a whole stream, in e-folds."""

    kind: str
    ops: int
    backward: float
    theory: float | None
    strongest: str
    """The block in which it did most, and how much."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientSplit:
    """The change of the squared gradient along one stream, split by kind of op, in e-folds."""

    stream: int
    kinds: tuple[KindShare, ...]
    total: float
    """What the kinds sum to."""
    measured: float | None
    first: str
    last: str

    @property
    def unexplained(self) -> float | None:
        """The measured change that no kind accounts for; None if it is only rounding."""
        rest = None if self.measured is None else self.measured - self.total
        return rest if rest is not None and abs(rest) > MIN_UNEXPLAINED else None


def chain_rule_section(profile: Profile) -> Section:
    splits = gradient_splits(profile)
    several = len(splits) > 1
    charts = [_waterfall(each, profile.streams[each.stream].input if several else "") for each in splits]
    return Section(
        key="chain",
        title="Where the gradient is lost or gained",
        link="Chain rule",
        lead="The squared gradient on its way from the last block to the first, split by the chain rule. The parts "
        "multiply to what was measured. Dashed: where theory puts the end of each bar.",
        body=tuple(charts),
    )


def gradient_splits(profile: Profile) -> list[GradientSplit]:
    """One per stream whose gradient was attributed."""
    splits = [_split(profile, index) for index in range(len(profile.streams))]
    return [split for split in splits if split is not None]


def _split(profile: Profile, stream: int) -> GradientSplit | None:
    """From after the last block of the stream to after its first, hence over the blocks after the first."""
    inside = [i for i, block in enumerate(profile.blocks) if block.stream == stream]
    if profile.attribution is None or len(inside) < 2:
        return None
    factors = [each for each in profile.attribution.within(inside[1:]) if each.backward is not None]
    finite = [each for each in factors if math.isfinite(each.backward or 0.0)]
    if not finite or len(finite) < len(factors):
        return None
    kinds = tuple(_share(kind, finite, profile.blocks) for kind in _ordered_kinds(finite))
    first, last = profile.blocks[inside[0]], profile.blocks[inside[-1]]
    return GradientSplit(
        stream=stream,
        kinds=kinds,
        total=sum(each.backward for each in kinds),
        measured=gradient_change(first, last),
        first=first.name,
        last=last.name,
    )


def _ordered_kinds(factors: Iterable[Factor]) -> list[str]:
    """The kinds with the largest effect first; "other ops" last."""
    sums: dict[str, float] = {}
    for each in factors:
        sums[each.kind] = sums.get(each.kind, 0.0) + (each.backward or 0.0)
    return sorted(sums, key=lambda kind: (kind == "rest", -abs(sums[kind])))


def _share(kind: str, factors: Sequence[Factor], blocks: Sequence[DepthBlock]) -> KindShare:
    mine = [each for each in factors if each.kind == kind]
    theory = [each.backward_theory for each in mine]
    most = max(mine, key=lambda each: abs(each.backward or 0.0))
    return KindShare(
        kind=kind,
        ops=sum(each.ops for each in mine),
        backward=sum(each.backward or 0.0 for each in mine),
        theory=None if None in theory else sum(each or 0.0 for each in theory),
        strongest=f"{most.op or kind} in {blocks[most.block].name}, {power(most.backward or 0.0)}",
    )


def gradient_change(first: DepthBlock, last: DepthBlock) -> float | None:
    r"""$\ln(G_{first} / G_{last})$ of the squared gradient $G$, as measured after the two blocks."""
    powers = [each.backward_ms * each.elements for each in (first, last) if each.backward_ms is not None]
    if len(powers) < 2 or not all(0 < each < math.inf for each in powers):
        return None
    return math.log(powers[0]) - math.log(powers[1])


def _waterfall(split: GradientSplit, title: str) -> BarChart:
    bars = [_bar(each) for each in split.kinds]
    if split.unexplained is not None:
        bars.append(Bar(label="not attributed", value=split.unexplained, amount=power(split.unexplained)))
    total = split.total if split.measured is None else split.measured
    bars.append(Bar(label="total", value=total, amount=power(total), tone="total"))
    strongest = " ".join(f"Largest part: {each.strongest}." for each in split.kinds[:KINDS_NAMED])
    exact = " The parts sum to the measured total." if split.unexplained is None else ""
    return BarChart(
        label="Change of the squared gradient from loss to input, by kind of op",
        rows=tuple(bars),
        waterfall=True,
        title=title,
        note=f"From after {split.last} to after {split.first}.{exact} {strongest}",
    )


def _bar(share: KindShare) -> Bar:
    name, amount = KIND_NAMES[share.kind], power(share.backward)
    mean = f", {factor(growth(share.backward / share.ops))} each" if share.ops > 1 else ""
    return Bar(
        label=name,
        value=share.backward,
        amount=amount,
        theory=share.theory,
        hint=f"{name}: {amount} over {plural(share.ops, 'op')}{mean}; most in {share.strongest}",
    )
