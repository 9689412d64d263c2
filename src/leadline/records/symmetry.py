"""What the symmetry reading found: the free rescalings of a network, and where weight decay is inert."""

from __future__ import annotations

import msgspec


class Generator(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    r"""One free rescaling: multiplying each tensor by $a^{n}$, $n$ its exponent, changes nothing, for every $a > 0$."""

    exponents: dict[str, int]
    """By parameter name."""
    says: str
    """The same in words."""
    statistics: dict[str, int] = {}
    """Exponents of the running statistics that follow, by buffer name: for evaluation they must be rescaled too."""


class EpsSite(msgspec.Struct, frozen=True, kw_only=True):
    """A norm in front of which the scale is free, as far as its eps allows."""

    where: str
    """The module it runs in."""
    eps: float
    against: float | None
    """What eps is added to, on average: the variance of the signal in front of the norm, as a rule."""

    @property
    def share(self) -> float | None:
        """eps / (what it is added to): how far the norm is from being indifferent to scale."""
        if self.against is None:
            return None
        return self.eps / self.against if self.against > 0 else float("inf")


class ScaledTensor(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One trainable parameter, as the penalty sees it."""

    name: str
    kind: str
    """As in `leadline.records.Parameter`."""
    count: int
    norm: float | None = None
    grad_norm: float | None = None
    alone: bool = False
    """Its scale is free while all others keep theirs: the network is invariant to it."""
    inert: bool = False
    """It can shrink to nothing while no decayed tensor grows."""


class Symmetry(msgspec.Struct, frozen=True, kw_only=True):
    """All free rescalings of a network's parameter tensors."""

    generators: tuple[Generator, ...]
    """A basis of the group, as few tensors in each as could be had."""
    tensors: tuple[ScaledTensor, ...]
    decayed: bool
    """Only the tensors that the optimiser decays count as penalty; False: no decay is known, and all count."""
    penalty: float | None
    """Sum of squares of what is penalised, each weighted with its decay if that is known."""
    least: float | None
    """What the same network's penalty comes down to along the free directions (an infimum: eps stops it earlier)."""
    eps: tuple[EpsSite, ...]
    held: tuple[str, ...]
    """Ops whose scaling is not known or not worked out: what they read was held fixed, so the group may be larger."""

    @property
    def dimension(self) -> int:
        return len(self.generators)

    @property
    def inert(self) -> tuple[str, ...]:
        return tuple(each.name for each in self.tensors if each.inert)

    @property
    def invariant(self) -> tuple[str, ...]:
        return tuple(each.name for each in self.tensors if each.alone)

    @property
    def free_share(self) -> float | None:
        """The share of the penalty that can be had without changing the network."""
        if self.penalty is None or self.least is None:
            return None
        return 1.0 - self.least / self.penalty if self.penalty > 0 else 0.0
