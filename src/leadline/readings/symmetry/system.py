"""Homogeneous linear equations between scales, solved exactly over the rationals, and a readable basis."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from fractions import Fraction
from heapq import heapify, heappop, heappush
from math import gcd, lcm

Number = int | Fraction
Form = dict[int, Number]
"""A linear form: coefficients by unknown."""

ZERO = 0  # the unknown that is no unknown: a scale that cannot change


class System:
    """Unknowns are numbers 1, 2, ...; `ZERO` stands for nought. Equalities are merged at once, others kept as rows."""

    def __init__(self) -> None:
        self._parents = [ZERO]
        self._rows: list[Form] = []

    def unknown(self) -> int:
        self._parents.append(len(self._parents))
        return len(self._parents) - 1

    def same(self, one: int, other: int) -> None:
        low, high = sorted((self.find(one), self.find(other)))
        self._parents[high] = low

    def find(self, unknown: int) -> int:
        """The unknown that stands for all those known to be equal to this one."""
        root = unknown
        while self._parents[root] != root:
            root = self._parents[root]
        while self._parents[unknown] != root:
            self._parents[unknown], unknown = root, self._parents[unknown]
        return root

    def combination(self, form: Mapping[int, Number]) -> int:
        """An unknown that equals this linear form."""
        form = self._reduced(form)
        if not form:
            return ZERO
        (first, coefficient), *others = form.items()
        if coefficient == 1 and not others:
            return first
        made = self.unknown()
        self._rows.append({**form, made: -1})
        return made

    def solve(self) -> Solution:
        """Every unknown as a linear form in a few free ones."""
        rows = self._merge_simple_rows()
        unknowns = (each for each in range(1, len(self._parents)) if self._parents[each] == each)
        return Solution(self, _eliminate(rows, unknowns))

    def _reduced(self, form: Mapping[int, Number]) -> Form:
        reduced: Form = {}
        for unknown, coefficient in form.items():
            root = self.find(unknown)
            if root != ZERO:
                reduced[root] = reduced.get(root, 0) + coefficient
        return {unknown: coefficient for unknown, coefficient in reduced.items() if coefficient}

    def _merge_simple_rows(self) -> list[Form]:
        """Rows `a x = 0` and `a x = a y` are mergers; each may make others simple, so repeat until none is left."""
        rows, merged = self._rows, True
        while merged:
            merged, kept = False, []
            for row in map(self._reduced, rows):
                unknowns = list(row)
                if len(unknowns) == 1:
                    self.same(unknowns[0], ZERO)
                elif len(unknowns) == 2 and sum(row.values()) == 0:
                    self.same(*unknowns)
                elif row:
                    kept.append(row)
                    continue
                merged = True
            rows = kept
        return [row for row in map(self._reduced, rows) if row]


class Solution:
    """What `System.solve` found."""

    def __init__(self, system: System, forms: dict[int, Form]) -> None:
        self._system, self._forms = system, forms

    def form(self, unknown: int) -> Form:
        """The unknown as a linear form in free unknowns; empty if it must be nought."""
        root = self._system.find(unknown)
        return {} if root == ZERO else self._forms[root]


def _eliminate(rows: list[Form], unknowns: Iterable[int]) -> dict[int, Form]:
    """Gaussian elimination that takes the sparsest pivot first (Markowitz, 1957), then substitutes back.

    An unknown that stands in a single row, as most parameters do, is a pivot that touches no other row; what stands in
    several from the start, the scale of a stream, stays free where there is a choice: so forms stay local.
    """
    columns: dict[int, set[int]] = {unknown: set() for unknown in unknowns}
    for index, row in enumerate(rows):
        for unknown in row:
            columns[unknown].add(index)
    solved = list(_pivots(rows, columns))
    pivots = {pivot for pivot, _ in solved}
    forms: dict[int, Form] = {unknown: {unknown: 1} for unknown in columns if unknown not in pivots}
    for pivot, rest in reversed(solved):
        forms[pivot] = combined((coefficient, forms[unknown]) for unknown, coefficient in rest.items())
    return forms


def _pivots(rows: list[Form], columns: dict[int, set[int]]) -> Iterator[tuple[int, Form]]:
    """Each pivot with what it equals in terms of later pivots and free unknowns."""
    uses = {unknown: len(column) for unknown, column in columns.items()}
    queue = [(_cost(row, columns), index) for index, row in enumerate(rows)]
    heapify(queue)
    while queue:
        cost, index = heappop(queue)
        row = rows[index]
        if not row:
            continue
        if (now := _cost(row, columns)) > cost:  # others changed meanwhile
            heappush(queue, (now, index))
            continue
        pivot = min(row, key=lambda unknown: (len(columns[unknown]), uses[unknown], unknown))
        for unknown in row:
            columns[unknown].discard(index)
        rest = {
            unknown: quotient(-coefficient, row[pivot])
            for unknown, coefficient in row.items()
            if unknown != pivot
        }
        rows[index] = {}
        for other in sorted(columns.pop(pivot)):
            _substitute(rows[other], other, pivot, rest, columns)
            heappush(queue, (_cost(rows[other], columns), other))
        yield pivot, rest


def _cost(row: Form, columns: Mapping[int, set[int]]) -> int:
    """Entries that eliminating by this row may fill in: (its length - 1) (rows of its rarest unknown - 1)."""
    return (len(row) - 1) * (min((len(columns[unknown]) for unknown in row), default=1) - 1)


def _substitute(
    row: Form, index: int, pivot: int, rest: Mapping[int, Number], columns: Mapping[int, set[int]]
) -> None:
    factor = row.pop(pivot)
    for unknown, coefficient in rest.items():
        value = row.get(unknown, 0) + factor * coefficient
        if value:
            row[unknown] = value
            columns[unknown].add(index)
        else:
            row.pop(unknown, None)
            columns[unknown].discard(index)


def combined(terms: Iterable[tuple[Number, Mapping[int, Number]]]) -> Form:
    """The sum of multiples of forms, without zeros."""
    total: Form = {}
    for factor, form in terms:
        for unknown, coefficient in form.items():
            total[unknown] = total.get(unknown, 0) + factor * coefficient
    return {unknown: coefficient for unknown, coefficient in total.items() if coefficient}


def quotient(one: Number, other: Number) -> Number:
    """One over the other, as a whole number where it is one: these are several times faster."""
    ratio = Fraction(one) / other if isinstance(one, Fraction) or isinstance(other, Fraction) else None
    if ratio is None:
        whole, left = divmod(one, other)
        return int(whole) if not left else Fraction(one, other)
    return ratio.numerator if ratio.denominator == 1 else ratio


# A basis of the free rescalings that can be read: whole numbers, and as few parameters in each as can be had.

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
