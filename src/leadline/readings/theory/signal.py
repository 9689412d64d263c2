"""What theory knows about one tensor: its field, and which function of which Gaussian source it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import msgspec
import torch
from msgspec.structs import replace
from torch import Tensor

from leadline.readings.theory import quadrature
from leadline.readings.theory.field import RandomField, constant, mean_pair_moment, profile_of, with_pairs
from leadline.readings.theory.position_profile import MIN_WEIGHT, PositionProfile, raised

# Derived: below this relative variance a tensor is constant: float32 rounds at 6e-8, squared 4e-15.
MIN_RELATIVE_VARIANCE = 1e-9

# Derived: the fourth power grows with the exponent 4; a quadrature of steeper functions is not reliable.
MAX_EXPONENT = 4.0

# Heuristic: bounds the cost of the search for a common source of two tensors.
MAX_SOURCE_EXPANSIONS = 16


class Signal(msgspec.Struct, frozen=True, kw_only=True):
    """A tensor as a function $f(z)$ of a standard Gaussian source $z$, or as a constant."""

    field: RandomField
    key: int
    """Id of the source; equal keys are the same elements of the same tensor."""
    slope: float = 0.0
    """The factor of $z$ of a linear function."""
    nodes: Tensor | None = None
    """The values of any other function at the quadrature nodes."""
    source: RandomField | None = None
    """The field of $z$ of any other function, in the axes of this tensor."""
    noise: float = 0.0
    """Variance of the logarithm of the second moment, from the layers before."""
    deterministic: bool = False
    """Whether the tensor averages over so many elements that it counts as a constant."""
    origin: int = -1
    """The source whose elements were averaged, if the tensor is deterministic."""
    exact: bool = False
    """Whether its second moment does not fluctuate: the output of a norm."""
    steady_ms: float = 0.0
    """The part of the second moment that does not fluctuate, of a sum with the output of a norm in it."""
    visible_share: float | None = None
    """Share of keys that a mask leaves visible, for masked logits; a causal mask leaves a little over one half."""
    blank: float = 0.0
    """Share of elements that still hold what the tensor was created with, after some of them were written."""
    blank_value: float = 0.0
    """What the blank elements hold."""
    uninitialized: bool = False
    """Whether the blank elements hold arbitrary memory, so that no op may read the tensor before they are written."""

    @property
    def correlations(self) -> tuple[float, ...]:
        """Correlations of $z$ along each axis."""
        if self.source is not None:
            return self.source.share
        return correlations(self.field)


def correlations(field: RandomField) -> tuple[float, ...]:
    r"""$\rho_a = (s_a - \mu^2) / \sigma^2$: correlations of pairs along each axis, for a Gaussian with this field."""
    if field.var <= MIN_RELATIVE_VARIANCE * field.ms:
        return (1.0,) * len(field.shape)
    square, var = field.mean * field.mean, field.var
    return tuple([min(max((each - square) / var, -1.0), 1.0) for each in field.share])


def source_field(signal: Signal) -> RandomField:
    """The field of the source $z$."""
    if signal.source is not None:
        return signal.source
    return RandomField(
        shape=signal.field.shape, mean=0.0, ms=1.0, share=signal.correlations, profile=signal.field.profile
    )


def nodes_of(signal: Signal) -> Tensor:
    """The values of the tensor at the quadrature nodes of its source."""
    if signal.nodes is not None:
        return signal.nodes
    return signal.field.mean + signal.slope * quadrature.nodes()


def slope_of(signal: Signal) -> float:
    """The coefficient of the part that is linear in the source."""
    return signal.slope if signal.nodes is None else quadrature.linear_coefficient(signal.nodes)


def uneven_field(field: RandomField, f: Tensor, source: PositionProfile | None) -> RandomField:
    r"""The field of $f(z)$ where the variance of $z$ has a profile: $E[f^2]$ grows like $w^e$ near $w = 1$.

    With $z$ of variance $w$, $e = \partial \ln E[f^2] / \partial \ln w = E[f^2 (z^2 - 1)] / 2E[f^2]$.
    """
    if source is None or field.ms <= 0:
        return field
    exponent = min(max(quadrature.log_growth(f), -MAX_EXPONENT), MAX_EXPONENT)
    if source.pairs is not None:
        return with_pairs(field, source.axis, _function_pairs(field, f, source.pairs, exponent))
    factor, profile = raised(source, exponent)
    return replace(
        field, ms=field.ms * factor, share=tuple(each * factor for each in field.share), profile=profile
    )


def _function_pairs(field: RandomField, f: Tensor, pairs: Tensor, exponent: float) -> Tensor:
    r"""Pair moments of $f(z)$, with the orders of $\sum_k a_k^2\rho^k$ above the first counted as the second."""
    variances = pairs.diagonal().clamp_min(MIN_WEIGHT)
    roots = variances.sqrt()
    rho = (pairs / torch.outer(roots, roots)).clamp(-1.0, 1.0)
    constant_part = field.mean * field.mean / field.ms
    linear_part = quadrature.linear_coefficient(f) ** 2 / field.ms
    rest = max(1 - constant_part - linear_part, 0.0)
    sizes = variances ** (exponent / 2)
    return torch.outer(sizes, sizes) * (constant_part + rho * (linear_part + rest * rho))


def fluctuation(signal: Signal) -> float:
    r"""Variance of the logarithm of a measured second moment: the noise so far plus $(\kappa - 1)\overline{\rho^2}$.

    $\kappa = E[x^4]/E[x^2]^2$ (3 for a Gaussian, 6 after a ReLU) and $\overline{\rho^2}$ the mean squared correlation
    over all pairs of elements: $1/n$ for one sample of $n$ features. So a layer adds $2/n$ if linear, $5/n$ with ReLU.
    """
    if signal.exact or signal.deterministic:
        return signal.noise
    square = RandomField(
        shape=signal.field.shape, mean=0.0, ms=1.0, share=tuple(each * each for each in signal.correlations)
    )
    kurtosis = 3.0 if signal.nodes is None else quadrature.kurtosis(signal.nodes)
    long = [axis for axis, size in enumerate(signal.field.shape) if size > 1]
    return signal.noise + (kurtosis - 1) * mean_pair_moment(square, long)


def unsteady_share(signal: Signal) -> float:
    r"""The share that is left of the variance of a mean square if a part $s$ of the second moment $q$ is exact.

    $\mathrm{Var}\,|a + b|^2 = 4ab + 2b^2$ per feature for an exact part $a$ and a Gaussian part $b$, instead of
    $2(a + b)^2$: the share $1 - (s/q)^2$.
    """
    steady = signal.field.ms if signal.exact else signal.steady_ms
    return max(1 - (steady / signal.field.ms) ** 2, 0.0) if signal.field.ms > 0 else 1.0


def rearranged(signal: Signal, change: Callable[[RandomField], RandomField]) -> Signal:
    """The signal of the same elements in another arrangement."""
    source = None if signal.source is None else change(signal.source)
    return replace(signal, field=change(signal.field), source=source)


def constant_signal(shape: tuple[int, ...], value: float) -> Signal:
    """The signal of a tensor with one value everywhere."""
    return Signal(field=constant(shape, value), key=-1, deterministic=True, exact=True)


def uninitialized_signal(shape: tuple[int, ...]) -> Signal:
    """The signal of allocated memory that was not written yet; its blank elements count as zeros in the moments."""
    return replace(constant_signal(shape, 0.0), blank=1.0, uninitialized=True)


@dataclass(slots=True)
class Sources:
    """The Gaussian sources of one prediction, and the sums that made them."""

    parts: list[Mapping[int, float]] = field(default_factory=list)
    views: dict[tuple[int, str], int] = field(default_factory=dict)
    squared_cosines: dict[int, float] = field(default_factory=dict)
    """Mean squared cosines of two tokens, by value id (see `common_tokens`)."""
    _fluctuations: dict[int, tuple[Signal, float]] = field(default_factory=dict)
    """By the id of each signal that was asked for, which is kept so that no other one gets its id."""

    def fluctuation(self, signal: Signal) -> float:
        """The `fluctuation` of a signal; several readers of one tensor ask for it."""
        known = self._fluctuations.get(id(signal))
        if known is None:
            known = self._fluctuations[id(signal)] = (signal, fluctuation(signal))
        return known[1]

    def new_source(self, parts: Mapping[int, float] | None = None) -> int:
        """A new source; `parts` are the sources in its sum with their factors, in addition to an independent part."""
        self.parts.append({} if parts is None else parts)
        return len(self.parts) - 1

    def view(self, key: int, tag: str) -> int:
        """The source of some of the elements: a new one, but always the same for the same elements."""
        if key >= 0 and (key, tag) not in self.views:
            self.views[key, tag] = self.new_source()
        return self.views.get((key, tag), key)

    def gaussian(
        self,
        field: RandomField,
        noise: float = 0.0,
        parts: Mapping[int, float] | None = None,
        *,
        exact: bool = False,
    ) -> Signal:
        """A tensor with this field that is taken to be Gaussian, with a new source."""
        if field.var <= MIN_RELATIVE_VARIANCE * field.ms:
            return Signal(field=field, key=-1, deterministic=True, noise=noise, exact=exact)
        key = self.new_source(parts)
        return Signal(field=field, key=key, slope=field.var**0.5, noise=noise, exact=exact)

    def function(self, nodes: Tensor, like: Signal, source: RandomField) -> Signal | None:
        """A function of the source of `like`, from its values at the nodes; None if most of them are not finite."""
        clean = quadrature.replace_non_finite(nodes)
        if clean is None:
            return None
        mean, ms = quadrature.moments(clean)
        if ms - mean * mean <= MIN_RELATIVE_VARIANCE * ms:
            return Signal(field=constant(source.shape, mean), key=-1, deterministic=True, noise=like.noise)
        share = tuple(quadrature.kernel(clean, ms, source.share))
        field = uneven_field(
            RandomField(shape=source.shape, mean=mean, ms=ms, share=share), clean, profile_of(source)
        )
        return Signal(field=field, key=like.key, nodes=clean, source=source, noise=like.noise)

    def covariance(self, a: Signal, b: Signal) -> float:
        """Covariance of the elements of two tensors, through the sources that both depend on linearly."""
        if a.key < 0 or b.key < 0:
            return 0.0
        if a.key == b.key:
            return quadrature.product_mean(nodes_of(a), nodes_of(b)) - a.field.mean * b.field.mean
        left, right = {a.key: slope_of(a)}, {b.key: slope_of(b)}
        for _ in range(MAX_SOURCE_EXPANSIONS):
            last = max(left.keys() ^ right.keys(), default=-1)
            if last < 0 or not self.parts[last]:  # a source is older than the sums that contain it
                break
            for side in (left, right):
                factor = side.pop(last, 0.0)
                for key, share in self.parts[last].items() if factor else ():
                    side[key] = side.get(key, 0.0) + factor * share
        return sum(left[key] * right[key] for key in left.keys() & right.keys())
