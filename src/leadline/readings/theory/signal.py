"""What theory knows of one tensor: its field, and of which Gaussian source it is which function."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import msgspec
from msgspec.structs import replace
from torch import Tensor

from leadline.readings.theory import quadrature
from leadline.readings.theory.field import RandomField, constant, within

FLAT = 1e-9  # relative variance below which a tensor is one number; derived: float32 rounds at 6e-8, squared 4e-15
MOST_EXPANSIONS = (
    16  # sources replaced by what they were added from, in search of a common part; ours: bounds the cost
)


class Signal(msgspec.Struct, frozen=True, kw_only=True):
    """A tensor as $f(z)$ of a standard Gaussian source $z$, or as a number."""

    field: RandomField
    key: int
    """Which source; equal keys are the same elements of the same tensor."""
    slope: float = 0.0
    """Of a linear function: the factor of $z$."""
    nodes: Tensor | None = None
    """Of any other function: its values at the nodes."""
    source: RandomField | None = None
    """Of any other function: the field of $z$, in the axes of this tensor."""
    noise: float = 0.0
    """Variance of the logarithm of the second moment that the layers before have brought about."""
    tight: bool = False
    """It averages itself: as good as a number."""
    origin: int = -1
    """Of one that averages itself: the source whose elements were averaged."""
    exact: bool = False
    """Its second moment does not fluctuate: the output of a norm."""
    valid: float | None = None
    """Of masked logits: the share of keys that may be looked at; "causal" is a little over one half."""

    @property
    def correlations(self) -> tuple[float, ...]:
        """Of $z$ along each axis."""
        if self.source is not None:
            return self.source.share
        return correlations(self.field)


def correlations(field: RandomField) -> tuple[float, ...]:
    r"""$\rho_a = (s_a - \mu^2) / \sigma^2$, what pairs along each axis share of a Gaussian with this field."""
    if field.var <= FLAT * field.ms:
        return (1.0,) * len(field.shape)
    square, var = field.mean * field.mean, field.var
    return tuple([min(max((each - square) / var, -1.0), 1.0) for each in field.share])


def standardised(signal: Signal) -> RandomField:
    """The field of the source $z$."""
    if signal.source is not None:
        return signal.source
    return RandomField(shape=signal.field.shape, mean=0.0, ms=1.0, share=signal.correlations)


def nodes_of(signal: Signal) -> Tensor:
    if signal.nodes is not None:
        return signal.nodes
    return signal.field.mean + signal.slope * quadrature.nodes()


def slope_of(signal: Signal) -> float:
    """The part of the tensor that is linear in its source."""
    return signal.slope if signal.nodes is None else quadrature.slope(signal.nodes)


def fluctuation(signal: Signal) -> float:
    r"""Variance of the logarithm of a measured second moment: what came, and $(\kappa - 1)\overline{\rho^2}$.

    $\kappa = E[x^4]/E[x^2]^2$ (3 for a Gaussian, 6 behind a ReLU) and $\overline{\rho^2}$ the mean squared correlation
    over all pairs of elements: $1/n$ for one sample of $n$ features. So a layer adds $2/n$ if linear, $5/n$ with ReLU.
    """
    if signal.exact or signal.tight:
        return signal.noise
    square = RandomField(
        shape=signal.field.shape, mean=0.0, ms=1.0, share=tuple(each * each for each in signal.correlations)
    )
    kurtosis = 3.0 if signal.nodes is None else quadrature.kurtosis(signal.nodes)
    long = [axis for axis, size in enumerate(signal.field.shape) if size > 1]
    return signal.noise + (kurtosis - 1) * within(square, long)


def moved(signal: Signal, change: Callable[[RandomField], RandomField]) -> Signal:
    """The same elements in another arrangement."""
    source = None if signal.source is None else change(signal.source)
    return replace(signal, field=change(signal.field), source=source)


def number(shape: tuple[int, ...], value: float) -> Signal:
    return Signal(field=constant(shape, value), key=-1, tight=True, exact=True)


@dataclass(slots=True)
class Sources:
    """The Gaussian sources of one prediction, and what each was added up from."""

    parts: list[Mapping[int, float]] = field(default_factory=list)
    views: dict[tuple[int, str], int] = field(default_factory=dict)

    def fresh(self, parts: Mapping[int, float] | None = None) -> int:
        """A new source; `parts` are others that it is a sum of, with their factors, apart from what is its own."""
        self.parts.append({} if parts is None else parts)
        return len(self.parts) - 1

    def view(self, key: int, tag: str) -> int:
        """The source of some of the elements: another one, but the same for the same elements."""
        if key >= 0 and (key, tag) not in self.views:
            self.views[key, tag] = self.fresh()
        return self.views.get((key, tag), key)

    def gaussian(
        self,
        field: RandomField,
        noise: float = 0.0,
        parts: Mapping[int, float] | None = None,
        *,
        exact: bool = False,
    ) -> Signal:
        """A tensor with this field that is taken to be Gaussian: its own source."""
        if field.var <= FLAT * field.ms:
            return Signal(field=field, key=-1, tight=True, noise=noise, exact=exact)
        own = self.fresh(parts)
        return Signal(field=field, key=own, slope=field.var**0.5, noise=noise, exact=exact)

    def function(self, nodes: Tensor, like: Signal, source: RandomField) -> Signal | None:
        """A function of the source of `like`, by its values at the nodes."""
        clean = quadrature.cleaned(nodes)
        if clean is None:
            return None
        mean, ms = quadrature.moments(clean)
        if ms - mean * mean <= FLAT * ms:
            return Signal(field=constant(source.shape, mean), key=-1, tight=True, noise=like.noise)
        share = tuple(quadrature.kernel(clean, ms, source.share))
        made = RandomField(shape=source.shape, mean=mean, ms=ms, share=share)
        return Signal(field=made, key=like.key, nodes=clean, source=source, noise=like.noise)

    def covariance(self, a: Signal, b: Signal) -> float:
        """Of the elements of two tensors, by the sources that both descend from linearly."""
        if a.key < 0 or b.key < 0:
            return 0.0
        if a.key == b.key:
            return quadrature.moments_of_product(nodes_of(a), nodes_of(b)) - a.field.mean * b.field.mean
        left, right = {a.key: slope_of(a)}, {b.key: slope_of(b)}
        for _ in range(MOST_EXPANSIONS):
            last = max(left.keys() ^ right.keys(), default=-1)
            if last < 0 or not self.parts[last]:  # sources are older than what is added from them
                break
            for side in (left, right):
                factor = side.pop(last, 0.0)
                for key, share in self.parts[last].items() if factor else ():
                    side[key] = side.get(key, 0.0) + factor * share
        return sum(left[key] * right[key] for key in left.keys() & right.keys())
