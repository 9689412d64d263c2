"""A basis of the free rescalings that can be read: whole numbers, and as few parameters in each as can be had."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from fractions import Fraction
from math import gcd, lcm

from leadline.symmetry.system import Form, Number, quotient

Vector = dict[str, int]
"""Exponents by parameter name."""

ROUNDS = 4  # ours: passes over all pairs; each pass can only make vectors shorter, and two were enough so far


def make_basis(forms: Mapping[str, Form], followers: Mapping[str, Form]) -> list[tuple[Vector, Vector]]:
    """Generators of the group, from each parameter's scale as a form in free unknowns.

    `followers` are tensors that scale along without being parameters (running statistics); each generator comes as
    its parameters and its followers.
    """
    pairs = [_split(vector, forms) for vector in _short_vectors({**followers, **forms}, frozenset(followers))]
    order = {name: place for place, name in enumerate(forms)}
    return sorted(
        ((own, rest) for own, rest in pairs if own),
        key=lambda pair: (len(pair[0]), min(order[name] for name in pair[0])),
    )


def _split(vector: Vector, forms: Mapping[str, Form]) -> tuple[Vector, Vector]:
    own = {name: each for name, each in vector.items() if name in forms}
    return own, {name: each for name, each in vector.items() if name not in forms}


def _short_vectors(forms: Mapping[str, Form], quiet: frozenset[str]) -> list[Vector]:
    """One vector for each free unknown, shortened as far as it goes; `quiet` names do not count."""
    columns: dict[int, dict[str, Number]] = defaultdict(dict)
    for name, form in forms.items():
        for unknown, coefficient in form.items():
            columns[unknown][name] = coefficient
    order = {name: -1 if name in quiet else place for place, name in enumerate(forms)}
    vectors = [_whole(column, order) for column in columns.values()]
    for _ in range(ROUNDS):
        if not _shorten(vectors, order):
            break
    return vectors


def _shorten(vectors: list[Vector], order: Mapping[str, int]) -> bool:
    """Take a multiple of one vector from another wherever that shortens it; True if it did somewhere."""
    holders: dict[str, set[int]] = defaultdict(set)
    for index, vector in enumerate(vectors):
        for name in _loud(vector, order):
            holders[name].add(index)
    changed = False
    for index in sorted(range(len(vectors)), key=lambda each: len(vectors[each])):
        shared = {other for name in _loud(vectors[index], order) for other in holders[name]} - {index}
        for other in sorted(shared):
            shorter = _shortest(vectors[other], vectors[index], order)
            if _length(shorter, order) < _length(vectors[other], order):
                for name in vectors[other].keys() - shorter.keys():
                    holders[name].discard(other)
                for name in _loud(shorter, order).keys() - vectors[other].keys():
                    holders[name].add(other)
                vectors[other], changed = shorter, True
    return changed


def _shortest(vector: Vector, taken: Vector, order: Mapping[str, int]) -> Vector:
    """`vector` minus that multiple of `taken` which cancels most."""
    ratios: dict[Number, int] = defaultdict(int)
    for name in _loud(vector, order).keys() & taken.keys():
        ratios[quotient(vector[name], taken[name])] += 1
    if not ratios:
        return vector
    best = max(ratios, key=lambda ratio: (ratios[ratio], -abs(Fraction(ratio)), ratio))
    names = list(dict.fromkeys([*vector, *taken]))
    left = {name: vector.get(name, 0) - best * taken.get(name, 0) for name in names}
    return _whole({name: each for name, each in left.items() if each}, order)


def _loud(vector: Mapping[str, Number], order: Mapping[str, int]) -> dict[str, Number]:
    return {name: each for name, each in vector.items() if order[name] >= 0}


def _length(vector: Vector, order: Mapping[str, int]) -> Number:
    """Few parameters and small exponents make a short vector."""
    return sum((abs(Fraction(each)) for each in _loud(vector, order).values()), Fraction(0))


def _whole(vector: Mapping[str, Number], order: Mapping[str, int]) -> Vector:
    """The vector in whole numbers without a common divisor; more parameters grow than shrink, or the first does."""
    scale = lcm(*(Fraction(each).denominator for each in vector.values()))
    whole = {name: int(vector[name] * scale) for name in sorted(vector, key=order.__getitem__)}
    common = gcd(*whole.values())
    loud = [whole[name] for name in _loud(whole, order)] or [1]
    growing = sum(1 if each > 0 else -1 for each in loud)
    sign = 1 if growing > 0 or (growing == 0 and loud[0] > 0) else -1
    return {name: sign * each // common for name, each in whole.items()}
