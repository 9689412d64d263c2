"""A basis of the free rescalings that can be read: whole numbers, and as few parameters in each as can be had."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from fractions import Fraction
from math import gcd, lcm

from leadline.symmetry.system import Form, Number

Vector = dict[str, int]
"""Exponents by parameter name."""

ROUNDS = 4  # ours: passes over all pairs; each pass can only make vectors shorter, and two were enough so far


def make_basis(forms: Mapping[str, Form], followers: Mapping[str, Form]) -> list[tuple[Vector, Vector]]:
    """Generators of the group, from each parameter's scale as a form in free unknowns.

    `followers` are tensors that scale along without being parameters (running statistics); each generator comes as
    its parameters and its followers.
    """
    order = {name: place for place, name in enumerate(forms)}
    vectors = _columns({**forms, **followers})
    for _ in range(ROUNDS):
        if not _shorten(vectors, order):
            break
    pairs = [_split(_signed(vector, order), order) for vector in vectors]
    return sorted(
        ((own, rest) for own, rest in pairs if own),
        key=lambda pair: (len(pair[0]), min(order[name] for name in pair[0])),
    )


def _columns(forms: Mapping[str, Form]) -> list[Vector]:
    """One vector for each free unknown, in whole numbers."""
    columns: dict[int, dict[str, Number]] = defaultdict(dict)
    for name, form in forms.items():
        for unknown, coefficient in form.items():
            columns[unknown][name] = coefficient
    found = []
    for column in columns.values():
        scale = lcm(*(Fraction(each).denominator for each in column.values()))
        found.append({name: int(each * scale) for name, each in column.items()})
    return found


def _shorten(vectors: list[Vector], order: Mapping[str, int]) -> bool:
    """Take whole multiples of one vector from another wherever that shortens it; True if it did somewhere."""
    holders: dict[str, set[int]] = defaultdict(set)
    for index, vector in enumerate(vectors):
        for name in vector:
            holders[name].add(index)
    changed = False
    for index in sorted(range(len(vectors)), key=lambda each: len(vectors[each])):
        taken = vectors[index]
        loud = [name for name in taken if name in order]
        for other in sorted({each for name in loud for each in holders[name]} - {index}):
            if len(loud) > 2 * len(vectors[other]):  # would bring in more than it can cancel
                continue
            if times := _best(vectors[other], taken, loud):
                _take(vectors[other], taken, times, other, holders)
                changed = True
    return changed


def _best(vector: Vector, taken: Vector, names: Iterable[str]) -> int:
    """How often to take one vector from the other to make it shortest; 0 if that is never."""
    shared = [(vector.get(name, 0), taken[name]) for name in names]
    ratios = Counter(one // other for one, other in shared if one and one % other == 0)
    if not ratios:
        return 0
    times = max(ratios, key=lambda ratio: (ratios[ratio], -abs(ratio), ratio))
    before = sum(abs(one) for one, _ in shared)
    return times if sum(abs(one - times * other) for one, other in shared) < before else 0


def _take(vector: Vector, taken: Vector, times: int, index: int, holders: Mapping[str, set[int]]) -> None:
    for name, exponent in taken.items():
        left = vector.get(name, 0) - times * exponent
        if left:
            vector[name] = left
            holders[name].add(index)
        else:
            vector.pop(name, None)
            holders[name].discard(index)


def _signed(vector: Vector, order: Mapping[str, int]) -> Vector:
    """Without a common divisor; more parameters grow than shrink, or else the first one does."""
    common = gcd(*vector.values())
    loud = [vector[name] for name in sorted(vector.keys() & order.keys(), key=order.__getitem__)] or [1]
    growing = sum(1 if each > 0 else -1 for each in loud)
    sign = 1 if growing > 0 or (growing == 0 and loud[0] > 0) else -1
    return {name: sign * each // common for name, each in vector.items()}


def _split(vector: Vector, order: Mapping[str, int]) -> tuple[Vector, Vector]:
    own = {name: vector[name] for name in sorted(vector.keys() & order.keys(), key=order.__getitem__)}
    return own, {name: each for name, each in vector.items() if name not in order}
