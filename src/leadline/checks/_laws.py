r"""How a second moment changes with depth: geometrically, which breaks training, or as a power of depth (pre-norm).

A geometric law $q_\ell = \chi^\ell q_0$ has the depth scale $\xi = 1 / |\ln \chi|$; over a stack of $L$ blocks the
moment changes by $L / \xi$ e-folds, evenly in both halves of the stack. A power law $q_\ell \propto \ell^p$ changes by
$p \ln 2$ in its later half, at any depth.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from leadline.ops.optimizers import Family, family_of
from leadline.readings.limits import MAX_EFOLDS_ADAM, MAX_EFOLDS_SGD
from leadline.records import DepthBlock, Direction, LimitLevel, Margin, Profile, Severity
from leadline.records.cliffs import DepthChange, depth_change

# Derived: e-folds in the flatter half of the stack. A power law l^p has p ln 2 there, which is less for p < 2.9.
MIN_EFOLDS_PER_HALF = 2.0
# Calibrated by benchmarks/verdicts: multiple of MAX_EFOLDS_ADAM that a decay through shared weights may reach.
# Unrolled recurrences learned at 27 e-folds.
SHARED_WEIGHTS_MULTIPLE = 2.0
# Heuristic: with fewer blocks, one odd layer cannot be distinguished from a law.
MIN_LAW_BLOCKS = 4
# Heuristic: a structure (a norm in each block, an activation after each add) is the rule in a stack from this share of
# the blocks on; the rest are stems, transitions and heads.
MIN_STRUCTURE_SHARE = 0.8
# Heuristic: among fewer blocks, one may well have most of the gradient or of the step.
MIN_COMPARED_BLOCKS = 8
# Derived: DeepNorm's alpha is (2N)^(1/4), which is 1.19 for a single layer; a larger scale is deliberate.
MIN_DELIBERATE_SCALE = 1.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Law:
    """The change of one moment over the measured part of a stream, in the direction in which the signal runs."""

    first: DepthBlock
    last: DepthBlock
    blocks: int
    change: float
    """Natural logarithm of (moment at the end / moment at the start), in the direction of the signal."""
    rest: float
    """The change without cliffs, single blocks that change the moment far more than the others."""
    cliffs: tuple[tuple[DepthBlock, float], ...]
    """The block of each cliff and its change, the largest first."""
    start: float
    end: float
    normalized: bool
    """Most of these blocks contain a normalization."""
    zero_from: str
    """The block from which on the signal is exactly zero; "" if it never is."""
    direction: Direction
    family: Family | None
    """How the step of the optimizer depends on the gradient; None if it is not known."""
    shared: bool
    """The blocks use the same weights: an unrolled recurrence."""
    one_block: bool
    """Without the cliffs, the change is not a geometric law or does not go too far."""
    layers: tuple[int, int]
    """The lowest and the highest of these blocks, as indices in the profile."""

    @property
    def gain(self) -> float:
        r"""Factor per block without cliffs, $\chi$."""
        return math.exp(self.rest / max(self.blocks - 1 - len(self.cliffs), 1))

    @property
    def severity(self) -> Severity:
        """How serious the change is.

        Beyond MAX_EFOLDS_ADAM no network learned. Between MAX_EFOLDS_SGD and MAX_EFOLDS_ADAM optimizers that rescale
        each parameter (Adam) did. If all blocks share their weights, these also get the gradient of the last blocks,
        so only growth hurts. A cliff is not a law: the change without it counts. A forward decay up to MAX_EFOLDS_ADAM
        is judged by its effect on the gradient.
        """
        size = abs(self.rest)
        decays = self.change < 0
        shared_decay = self.shared and decays and size < SHARED_WEIGHTS_MULTIPLE * MAX_EFOLDS_ADAM
        forward_decay = self.direction == "forward" and decays and size < MAX_EFOLDS_ADAM
        if (shared_decay and not self.zero_from) or self.one_block or forward_decay:
            return "info"
        if size > MAX_EFOLDS_ADAM or self.zero_from:
            return "error"
        return "info" if self.family == "adam" else "warning"

    @property
    def signal(self) -> str:
        return "gradient" if self.direction == "backward" else "signal"

    @property
    def where(self) -> str:
        return f"{self.first.name} … {self.last.name}"

    def evidence(self) -> dict[str, float]:
        return {
            "start": self.start,
            "end": self.end,
            "e_folds": self.change,
            "gain_per_block": self.gain,
            "depth_scale_blocks": abs(1 / math.log(self.gain)) if self.gain != 1 else math.inf,
            "blocks": float(self.blocks),
        }


def forward_laws(profile: Profile) -> Iterator[Law]:
    """The law of the forward second moment of each stream in which it is geometric and goes too far."""
    for body in _bodies(profile):
        yield from _law(body, [block.forward_ms for _, block in body], "forward", profile)


def backward_laws(profile: Profile) -> Iterator[Law]:
    r"""The law of the squared gradient, from the loss to the input, of each stream in which it is geometric.

    The law is that of $\sum g^2$, not of its mean, because layers of another width or resolution preserve the sum.
    """
    for body in _bodies(profile):
        reverse = body[::-1]
        yield from _law(reverse, _gradient_powers(reverse), "backward", profile)


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamChange:
    """The change of one moment along a stream, law or not, in the direction in which the signal runs."""

    change: DepthChange
    start: float
    """The moment where the signal starts: its mean square, or the sum of squares of a gradient."""
    blocks: tuple[int, ...]
    """The blocks with a positive moment, in the direction of the signal, as indices in the profile."""

    def level(self, quantity: Direction, e_folds: float) -> LimitLevel:
        """The moment that is `e_folds` away from the start; a cliff shifts it, because it is not part of the change."""
        return LimitLevel(
            quantity=quantity,
            level=self.start * math.exp(e_folds),
            blocks=(self.blocks[0], self.blocks[-1]),
            cliffs={self.blocks[place + 1]: self.change.steps[place] for place in self.change.cliffs},
        )


def widest_change(profile: Profile, direction: Direction) -> StreamChange | None:
    """The largest change of any stream without its cliffs; None if nothing is known."""
    changes = []
    for body in _bodies(profile):
        ordered = body if direction == "forward" else body[::-1]
        moments = [b.forward_ms for _, b in body] if direction == "forward" else _gradient_powers(ordered)
        known = {
            index: moment
            for (index, _), moment in zip(ordered, moments, strict=True)
            if moment is not None and 0 < moment < math.inf
        }
        if len(known) > 1:
            blocks, values = tuple(known), list(known.values())
            change = depth_change([math.log(moment) for moment in values], along=True)
            changes.append(StreamChange(change=change, start=values[0], blocks=blocks))
    return max(changes, key=lambda each: abs(each.change.rest), default=None)


def depth_margin(profile: Profile, direction: Direction, *, growth: bool) -> Iterator[Margin]:
    """The change over the whole depth without cliffs and its limit, in e-folds; only if it is a growth (or a decay)."""
    widest = widest_change(profile, direction)
    if widest is None or (widest.change.rest > 0) != growth:
        return
    adam = profile.optimizer is not None and family_of(profile.optimizer.name) == "adam"
    tolerated = adam or (direction == "forward" and not growth) or not _is_steady(widest.change.halves)
    what = "growth" if growth else "decay"
    signal = "signal" if direction == "forward" else "gradient"
    limit = MAX_EFOLDS_ADAM if tolerated else MAX_EFOLDS_SGD
    yield Margin(
        quantity=f"{what} of the {signal} over the depth, e-folds",
        value=abs(widest.change.rest),
        limit=limit,
        over_depth=widest.level(direction, limit if growth else -limit),
    )


IndexedBlock = tuple[int, DepthBlock]


def _bodies(profile: Profile) -> Iterator[Sequence[IndexedBlock]]:
    """The blocks of each stream without the head, whose output has another meaning and size."""
    for index, stream in enumerate(profile.streams):
        blocks = [pair for pair in enumerate(profile.blocks) if pair[1].stream == index]
        yield blocks[:-1] if stream.joins is None else blocks


def _gradient_powers(blocks: Sequence[IndexedBlock]) -> list[float | None]:
    return [None if block.backward_ms is None else block.backward_ms * block.elements for _, block in blocks]


def _law(
    blocks: Sequence[IndexedBlock], moments: Sequence[float | None], direction: Direction, profile: Profile
) -> Iterator[Law]:
    """Follow the signal while it is positive. A zero after a long decay is that decay, underflowed."""
    known = [(b, m) for b, m in zip(blocks, moments, strict=True) if m is not None and math.isfinite(m)]
    zero = next((i for i, (_, moment) in enumerate(known) if moment <= 0), len(known))
    zero_from = known[zero][0][1].name if zero < len(known) else ""
    known = known[:zero]
    if len(known) < MIN_LAW_BLOCKS:
        return
    change = depth_change([math.log(moment) for _, moment in known], along=True)
    # Where cliffs turn the change around, what happens between them is undone, and is not a law of the whole.
    broken = _goes_too_far(change.rest, change.halves) and change.rest * change.total > 0
    if broken or abs(change.total) > MAX_EFOLDS_ADAM:
        crossed = [block for (_, block), _ in known]
        crossed = crossed[1:] if direction == "forward" else crossed[:-1]
        yield Law(
            first=known[0][0][1],
            last=known[-1][0][1],
            blocks=len(known),
            change=change.total,
            rest=change.rest,
            cliffs=tuple((crossed[place], change.steps[place]) for place in change.cliffs),
            start=known[0][1],
            end=known[-1][1],
            normalized=sum(block.norms > 0 for (_, block), _ in known) > len(known) / 2,
            zero_from=zero_from,
            direction=direction,
            family=None if profile.optimizer is None else family_of(profile.optimizer.name),
            one_block=not zero_from and not broken,
            shared=_share_weights([block for (_, block), _ in known]),
            layers=(min(known[0][0][0], known[-1][0][0]), max(known[0][0][0], known[-1][0][0])),
        )


def _goes_too_far(change: float, halves: tuple[float, float]) -> bool:
    """Whether a change breaks training: any beyond MAX_EFOLDS_ADAM, a geometric one beyond MAX_EFOLDS_SGD."""
    return abs(change) > MAX_EFOLDS_ADAM or (abs(change) > MAX_EFOLDS_SGD and _is_steady(halves))


def _is_steady(halves: tuple[float, float]) -> bool:
    return min(abs(half) for half in halves) > MIN_EFOLDS_PER_HALF and halves[0] * halves[1] > 0


def _share_weights(blocks: Sequence[DepthBlock]) -> bool:
    """Whether most neighbors have a parameter in common."""
    sharing = sum(bool(set(one.params) & set(other.params)) for one, other in pairwise(blocks))
    return sharing > len(blocks) / 2


# Branches whose last weights are drawn smaller with depth, as in GPT-2.

# Heuristic: factor around 1/N that still counts as scaled by depth; activations account for gains of up to 2.
MAX_FACTOR_FROM_DEPTH_SCALING = 3.0


def pre_norm_blocks(profile: Profile) -> list[DepthBlock]:
    """The residual blocks with a norm before the branch and an identity skip."""
    return [
        b for b in profile.blocks if b.residual and b.residual.placement == "pre" and not b.residual.projected
    ]


def scaled_init_ratio(profile: Profile, sublayers: int) -> float | None:
    """Variance of the last weights of branches over that of the other weights; None unless it is about 1/N."""
    weights = [w for w in (profile.facts.weights if profile.facts else ()) if w.residual]
    last, others = [w.variance for w in weights if w.last], [w.variance for w in weights if not w.last]
    if not last or not others or not median(others) > 0:
        return None
    ratio = median(last) / median(others)
    limit = MAX_FACTOR_FROM_DEPTH_SCALING
    return ratio if 1 / limit < ratio * sublayers < limit else None
