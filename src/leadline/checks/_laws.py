r"""How a second moment changes with depth: geometrically (a sickness) or as a power of depth (pre-norm's way).

A geometric law $q_\ell = \chi^\ell q_0$ has the depth scale $\xi = 1 / |\ln \chi|$; over a stack of $L$ blocks the
moment changes by $L / \xi$ e-folds, evenly in both halves of the stack. A power law $q_\ell \propto \ell^p$ changes by
$p \ln 2$ in its later half, whatever the depth.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from leadline.ops.optimizers import Family, family_of
from leadline.readings.limits import MAX_EFOLDS_ADAM, MAX_EFOLDS_SGD
from leadline.records import DepthBlock, Direction, Margin, Profile, Severity

HALF = 2.0  # e-folds in the flatter half; derived: a power law l^p has p ln 2 there, less for p < 2.9
# times MAX_EFOLDS_ADAM, through shared weights; calibrated by benchmarks/verdicts: unrolled recurrences learned at 27
SHARED = 2.0
LARGE = 5.0  # e-folds of a single block; ours: layers of an even law have 0.1 to 4
LONE = 0.5  # of the change; derived: a law that all blocks follow has 1/L in each
MIN_BLOCKS = 4  # ours: with fewer, one odd layer cannot be told from a law


@dataclass(frozen=True, slots=True, kw_only=True)
class Law:
    """The change of one moment over the measured part of a stream, in the direction in which the signal runs."""

    first: DepthBlock
    last: DepthBlock
    blocks: int
    change: float
    """Natural logarithm of (moment at the end / moment at the start), seen in the signal's direction."""
    start: float
    end: float
    normalised: bool
    """Most of these blocks contain a normalisation."""
    beyond: str
    """The block from which on the signal is exactly zero; "" if it never is."""
    direction: Direction
    family: Family | None
    """How the optimiser's step depends on the gradient; None: not known."""
    shared: bool
    """The blocks use the same weights: a recurrence, unrolled."""
    lone_step: bool
    """One block makes most of the change, or what is left without it is no geometric law."""
    layers: tuple[int, int]
    """The lowest and the highest of these blocks, as indices in the profile."""

    @property
    def gain(self) -> float:
        r"""Factor a block, $\chi$."""
        return math.exp(self.change / (self.blocks - 1))

    @property
    def severity(self) -> Severity:
        """Beyond MAX_EFOLDS_ADAM nothing learned. Between MAX_EFOLDS_SGD and MAX_EFOLDS_ADAM Adam and its kin did,
        which rescale each parameter.

        Where all blocks share their weights, those get the gradient of the last blocks too, and only growth hurts. What
        a single block does is no law; and a forward decay is judged by what it does to the gradient, up to
        MAX_EFOLDS_ADAM.
        """
        if (
            self.shared
            and self.change < 0
            and abs(self.change) < SHARED * MAX_EFOLDS_ADAM
            and not self.beyond
        ):
            return "info"
        if self.lone_step or (
            self.direction == "forward" and self.change < 0 and abs(self.change) < MAX_EFOLDS_ADAM
        ):
            return "info"
        if abs(self.change) > MAX_EFOLDS_ADAM or self.beyond:
            return "error"
        return "info" if self.family == "adam" else "warning"

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
    """One law a stream, of the forward second moment; only where it is geometric and goes too far."""
    for body in _bodies(profile):
        yield from _law(body, [block.forward_ms for _, block in body], "forward", profile)


def backward_laws(profile: Profile) -> Iterator[Law]:
    r"""The same for gradients, which run from the loss to the input.

    Compared is $\sum g^2$, not its mean: that is what a layer of another width or resolution preserves.
    """
    for body in _bodies(profile):
        body = body[::-1]
        powers = [None if b.backward_ms is None else b.backward_ms * b.elements for _, b in body]
        yield from _law(body, powers, "backward", profile)


def widest_change(profile: Profile, direction: Direction) -> float | None:
    """The largest change of any stream from end to end, in e-folds, law or no law; None where nothing is known."""
    found = []
    for body in _bodies(profile):
        if direction == "forward":
            moments = [block.forward_ms for _, block in body]
        else:
            moments = [None if b.backward_ms is None else b.backward_ms * b.elements for _, b in body[::-1]]
        known = [moment for moment in moments if moment is not None and 0 < moment < math.inf]
        if len(known) > 1:
            found.append(math.log(known[-1] / known[0]))
    return max(found, key=abs, default=None)


def depth_margin(profile: Profile, direction: Direction, *, growth: bool) -> Iterator[Margin]:
    """The change over the whole depth beside its limit, in e-folds, if it is a growth (or else a decay)."""
    change = widest_change(profile, direction)
    if change is None or (change > 0) != growth:
        return
    adam = profile.optimizer is not None and family_of(profile.optimizer.name) == "adam"
    tolerated = adam or (direction == "forward" and not growth)
    what = "growth" if growth else "decay"
    signal = "signal" if direction == "forward" else "gradient"
    yield Margin(
        quantity=f"{what} of the {signal} over the depth, e-folds",
        value=abs(change),
        limit=MAX_EFOLDS_ADAM if tolerated else MAX_EFOLDS_SGD,
    )


Place = tuple[int, DepthBlock]


def _bodies(profile: Profile) -> Iterator[Sequence[Place]]:
    """The blocks of each stream without the head, whose output has another meaning and size."""
    for index, stream in enumerate(profile.streams):
        blocks = [place for place in enumerate(profile.blocks) if place[1].stream == index]
        yield blocks[:-1] if stream.joins is None else blocks


def _law(
    blocks: Sequence[Place], moments: Sequence[float | None], direction: Direction, profile: Profile
) -> Iterator[Law]:
    """Follow the signal while it is a positive number; zero behind a long decay is that decay, underflown."""
    known = [(b, m) for b, m in zip(blocks, moments, strict=True) if m is not None and math.isfinite(m)]
    positive = next((i for i, (_, moment) in enumerate(known) if moment <= 0), len(known))
    beyond = known[positive][0][1].name if positive < len(known) else ""
    known = known[:positive]
    if len(known) < MIN_BLOCKS:
        return
    logs = [math.log(moment) for _, moment in known]
    change, middle = logs[-1] - logs[0], logs[len(logs) // 2]
    halves = (middle - logs[0], logs[-1] - middle)
    steady = min(abs(half) for half in halves) > HALF and halves[0] * halves[1] > 0
    if abs(change) > MAX_EFOLDS_ADAM or (abs(change) > MAX_EFOLDS_SGD and steady):
        yield Law(
            first=known[0][0][1],
            last=known[-1][0][1],
            blocks=len(known),
            change=change,
            start=known[0][1],
            end=known[-1][1],
            normalised=sum(block.norms > 0 for (_, block), _ in known) > len(known) / 2,
            beyond=beyond,
            direction=direction,
            family=None if profile.optimizer is None else family_of(profile.optimizer.name),
            lone_step=not beyond and _is_lone(logs),
            shared=_share_weights([block for (_, block), _ in known]),
            layers=(min(known[0][0][0], known[-1][0][0]), max(known[0][0][0], known[-1][0][0])),
        )


def _is_lone(logs: Sequence[float]) -> bool:
    """Without the largest step of a block, is less than half left, or does one half of the stack stand still?"""
    steps = [b - a for a, b in pairwise(logs)]
    largest = max(steps, key=abs)
    change = logs[-1] - logs[0]
    if abs(largest) > LONE * abs(change):
        return True
    if abs(largest) < LARGE:
        return False
    steps.remove(largest)
    middle = len(steps) // 2
    halves = sum(steps[:middle]), sum(steps[middle:])
    return min(abs(half) for half in halves) < HALF or halves[0] * halves[1] < 0


def _share_weights(blocks: Sequence[DepthBlock]) -> bool:
    """Most neighbours use a parameter in common."""
    both = sum(bool(set(one.params) & set(other.params)) for one, other in pairwise(blocks))
    return both > len(blocks) / 2


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
