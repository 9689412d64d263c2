r"""Gradients in theory: independent noises from the exits of a pointwise region, each times a function of the source.

After a weight the gradient is taken to be noise $\epsilon$ that is independent of the signal. Inside a region of
pointwise ops it is $\sum_e G_e(z)\,\epsilon_e$ over the exits $e$ of the region, with $G_e$ the derivative of the exit
with respect to this tensor. Paths to the same exit add up before they are squared, so that a GELU written as several
ops has the right gradient.

A gradient is not independent of its tensor in one direction, along the tensor itself: $\sum_i g_i x_i$ is the
derivative of the loss with respect to the scale of $x$. A linear map passes it on unchanged, a product gives the same
one to both factors, a function that is homogeneous of degree $k$ multiplies it by $k$, and it vanishes where a norm
removes the scale. `Term.radial` carries it, because the scale of a norm has this sum as its gradient.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import count

import msgspec
from msgspec.structs import replace
from torch import Tensor

from leadline.readings.theory import quadrature
from leadline.readings.theory.field import RandomField, product, profile_of, scaled, sum_profile
from leadline.readings.theory.signal import Signal, nodes_of, source_field, uneven_field

Weight = float | Tensor

Radial = Mapping[int, float]
"""Amplitudes of $\\sum_i g_i x_i$ over the features, by the id of an independent unit variable each."""


class Term(msgspec.Struct, frozen=True, kw_only=True):
    """$G(z)\\,\\epsilon$: the id of the noise, its field in the axes of this tensor, and the function $G$."""

    noise: int
    field: RandomField
    weight: Weight = 1.0
    anchor: Signal | None = None
    """The tensor $y$ for which the noise was made, if the part of the noise along it is known."""
    radial: Radial | None = None
    """That part: $\\sum_i \\epsilon_i y_i$ in units of $\\sqrt{n E[\\epsilon^2] E[y^2]}$, 1 for independent noise."""
    relative: bool = False
    """Whether the noise is inverse to its tensor $x$, so that $\\epsilon x$ does not depend on it: a norm's scale."""


Terms = tuple[Term, ...]
_NOISE_IDS = count()

# Derived: smaller parts are rounding errors of the quadrature.
MIN_RADIAL_REST = 1e-9


def new_noise(field: RandomField) -> Terms:
    """A gradient that is a new, independent noise."""
    return (Term(noise=next(_NOISE_IDS), field=field),)


def new_radial_noise(field: RandomField, signal: Signal, radial: Radial, factor: float = 1.0) -> Terms:
    """A new noise whose part along the tensor is `factor` times `radial`, given per feature as `radial_part` does."""
    unit = field.ms * signal.field.ms
    if unit <= 0:
        return new_noise(field)
    scale = factor / math.sqrt(unit)
    parts = {part: scale * size for part, size in radial.items()}
    return (Term(noise=next(_NOISE_IDS), field=field, anchor=signal, radial=parts),)


def radial_part(terms: Sequence[Term], signal: Signal) -> dict[int, float]:
    r"""Amplitudes of $n^{-1/2}\sum_i g_i x_i$ over the $n$ features of a tensor $x$.

    With $g = G(z)\,\epsilon$ and $h = G x$, noise whose part along its anchor $y$ has the variance $\kappa$ gives
    $E[\epsilon^2](E[h^2] + (\kappa - 1) E[hy]^2/E[y^2])$: what is not along $y$ is independent.
    """
    parts: dict[int, float] = {}
    for term in _merge_paths(terms):
        size, known = term.field.ms, term.anchor
        along, whole = _projections(term, signal)
        rest = whole
        if known is not None and term.radial is not None and along is not None and known.field.ms > 0:
            factor = along * math.sqrt(size / known.field.ms)
            if parts:
                for part, amplitude in term.radial.items():
                    parts[part] = parts.get(part, 0.0) + factor * amplitude
            else:  # in a deep network the first of few terms has hundreds of parts
                parts = {part: factor * amplitude for part, amplitude in term.radial.items()}
            rest = whole - along * along / known.field.ms
        if rest > MIN_RADIAL_REST * whole:
            parts[next(_NOISE_IDS)] = math.sqrt(size * rest)
    return parts


def radial_ratio(radial: Radial, g: RandomField, signal: Signal) -> float:
    """The variance of the radial part compared with that of a gradient that is independent of the tensor."""
    unit = g.ms * signal.field.ms
    return sum(each * each for each in radial.values()) / unit if unit > 0 else 1.0


def _projections(term: Term, signal: Signal) -> tuple[float | None, float]:
    """$E[hy]$ for $h = G x$ and the anchor $y$, None if they have different sources; and $E[h^2]$."""
    anchor, weight = term.anchor, term.weight
    related = anchor is not None and anchor.key == signal.key
    if not isinstance(weight, Tensor):
        whole = weight * weight * signal.field.ms
        if anchor is None or not related:
            return None, whole
        if anchor.deterministic and signal.deterministic:
            return weight * math.sqrt(anchor.field.ms * signal.field.ms), whole
        if anchor.nodes is None and signal.nodes is None:
            covariance = anchor.slope * signal.slope
            return weight * (anchor.field.mean * signal.field.mean + covariance), whole
        return weight * quadrature.product_mean(nodes_of(anchor), nodes_of(signal)), whole
    product = weight * nodes_of(signal)
    whole = quadrature.moments(product)[1]
    return (
        quadrature.product_mean(product, nodes_of(anchor)) if anchor is not None and related else None
    ), whole


def weighted(terms: Terms, factor: Weight) -> Terms:
    """The terms multiplied by a number or by a function of the source."""
    return tuple([replace(term, weight=term.weight * factor) for term in terms])


def gradient_field(terms: Sequence[Term], signal: Signal) -> RandomField:
    """The field of the whole gradient of a tensor: paths to one exit add, different exits add in squares."""
    fields = [_squared(term, signal) for term in _merge_paths(terms)]
    first = fields[0]
    if len(fields) == 1:
        return first
    return RandomField(
        shape=first.shape,
        mean=sum(each.mean for each in fields),
        ms=sum(each.ms for each in fields),
        share=tuple(map(sum, zip(*(each.share for each in fields), strict=True))),
        profile=sum_profile(fields),
    )


def _merge_paths(terms: Sequence[Term]) -> Sequence[Term]:
    if len(terms) < 2:
        return terms
    merged: dict[int, Term] = {}
    for term in terms:
        before = merged.get(term.noise)
        merged[term.noise] = term if before is None else replace(term, weight=before.weight + term.weight)
    return list(merged.values())


def _squared(term: Term, signal: Signal) -> RandomField:
    if not isinstance(term.weight, Tensor):
        return scaled(term.field, term.weight)
    mean, ms = quadrature.moments(term.weight)
    kernel = quadrature.kernel(term.weight, ms, signal.correlations)
    squared = RandomField(shape=term.field.shape, mean=mean, ms=ms, share=tuple(kernel))
    if signal.field.profile is not None:
        squared = uneven_field(squared, term.weight, profile_of(source_field(signal)))
    return product(term.field, squared)
