r"""Gradients in theory: independent noises from the exits of a pointwise region, each times a function of the source.

After a weight the gradient is taken to be noise $\epsilon$ that is independent of the signal. Inside a region of
pointwise ops it is $\sum_e G_e(z)\,\epsilon_e$ over the exits $e$ of the region, with $G_e$ the derivative of the exit
with respect to this tensor. Paths to the same exit add up before they are squared, so that a GELU written as several
ops has the right gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

import msgspec
from msgspec.structs import replace
from torch import Tensor

from leadline.readings.theory import quadrature
from leadline.readings.theory.field import RandomField, scaled
from leadline.readings.theory.signal import Signal

Weight = float | Tensor


class Term(msgspec.Struct, frozen=True, kw_only=True):
    """$G(z)\\,\\epsilon$: the id of the noise, its field in the axes of this tensor, and the function $G$."""

    noise: int
    field: RandomField
    weight: Weight = 1.0


Terms = tuple[Term, ...]
_NOISE_IDS = count()


def new_noise(field: RandomField) -> Terms:
    """A gradient that is a new, independent noise."""
    return (Term(noise=next(_NOISE_IDS), field=field),)


def weighted(terms: Terms, factor: Weight) -> Terms:
    """The terms multiplied by a number or by a function of the source."""
    return tuple(replace(term, weight=term.weight * factor) for term in terms)


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
    )


def _merge_paths(terms: Sequence[Term]) -> list[Term]:
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
    share = tuple(x * y for x, y in zip(term.field.share, kernel, strict=True))
    return RandomField(
        shape=term.field.shape, mean=term.field.mean * mean, ms=term.field.ms * ms, share=share
    )
