"""Homogeneous linear equations between scales, solved exactly over the rationals, with a readable basis."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from fractions import Fraction
from heapq import heapify, heappop, heappush
from math import gcd, lcm

Number = int | Fraction
Form = dict[int, Number]
"""A linear form: coefficients by unknown."""

# Derived: the unknown whose value is always zero comes first.
ZERO = 0
"""Stands for a scale that cannot change."""


class System:
    """Linear equations between unknowns 1, 2, ... and `ZERO`; equalities merge at once, the others become rows."""

    def __init__(self) -> None:
        self._parents = [ZERO]
        self._rows: list[Form] = []

    def unknown(self) -> int:
        """A new unknown."""
        self._parents.append(len(self._parents))
        return len(self._parents) - 1

    def same(self, one: int, other: int) -> None:
        """Demand that two unknowns are equal."""
        low, high = sorted((self.find(one), self.find(other)))
        self._parents[high] = low

    def find(self, unknown: int) -> int:
        """The representative of all unknowns that equal this one."""
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
        combination = self.unknown()
        self._rows.append({**form, combination: -1})
        return combination

    def solve(self) -> Solution:
        """Express every unknown as a linear form in a few free ones."""
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
        """Merge the unknowns of rows `a x = 0` and `a x = a y`, until no such row is left."""
        rows, merged = self._rows, True
        while merged:
            merged, remaining = False, []
            for row in map(self._reduced, rows):
                unknowns = list(row)
                if len(unknowns) == 1:
                    self.same(unknowns[0], ZERO)
                elif len(unknowns) == 2 and sum(row.values()) == 0:
                    self.same(*unknowns)
                elif row:
                    remaining.append(row)
                    continue
                merged = True
            rows = remaining
        return [row for row in map(self._reduced, rows) if row]


class Solution:
    """The solution of a `System`."""

    def __init__(self, system: System, forms: dict[int, Form]) -> None:
        self._system, self._forms = system, forms

    def form(self, unknown: int) -> Form:
        """The unknown as a linear form in free unknowns; empty if it must be zero."""
        root = self._system.find(unknown)
        return {} if root == ZERO else self._forms[root]


def _eliminate(rows: list[Form], unknowns: Iterable[int]) -> dict[int, Form]:
    """Gaussian elimination that takes the sparsest pivot first (Markowitz, 1957), then substitutes back.

    An unknown that occurs in a single row, as most parameters do, is a pivot that changes no other row. One that occurs
    in several rows from the start, such as the scale of a residual stream, stays free where there is a choice, which
    keeps the forms short.
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
    """Each pivot with its linear form in later pivots and free unknowns."""
    uses = {unknown: len(column) for unknown, column in columns.items()}
    queue = [(_cost(row, columns), index) for index, row in enumerate(rows)]
    heapify(queue)
    while queue:
        cost, index = heappop(queue)
        row = rows[index]
        if not row:
            continue
        current_cost = _cost(row, columns)
        if current_cost > cost:  # other pivots changed the row since it was queued
            heappush(queue, (current_cost, index))
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
    """Entries that elimination by this row may fill in: (its length - 1) (rows of its rarest unknown - 1)."""
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
    """One divided by the other; an integer where it is one, because integers are several times faster."""
    ratio = Fraction(one) / other if isinstance(one, Fraction) or isinstance(other, Fraction) else None
    if ratio is None:
        whole, left = divmod(one, other)
        return int(whole) if not left else Fraction(one, other)
    return ratio.numerator if ratio.denominator == 1 else ratio


# A readable basis of the free rescalings: integer exponents, and few parameters in each generator.

Vector = dict[str, int]
"""Exponents by parameter name."""

# Heuristic: passes over all pairs of vectors; each pass can only shorten them, and two sufficed on every model tried.
MAX_SHORTENING_PASSES = 4


def make_basis(forms: Mapping[str, Form], followers: Mapping[str, Form]) -> list[tuple[Vector, Vector]]:
    """Generators of the group, from the scale of each parameter as a form in free unknowns.

    `followers` are tensors that scale too but are not parameters (running statistics); each generator is returned as
    the exponents of its parameters and those of its followers.
    """
    order = {name: place for place, name in enumerate(forms)}
    vectors = _columns({**forms, **followers})
    for _ in range(MAX_SHORTENING_PASSES):
        if not _shorten(vectors, order):
            break
    pairs = [_split(_signed(vector, order), order) for vector in vectors]
    return sorted(
        ((own, rest) for own, rest in pairs if own),
        key=lambda pair: (len(pair[0]), min(order[name] for name in pair[0])),
    )


def _columns(forms: Mapping[str, Form]) -> list[Vector]:
    """One vector of integer exponents per free unknown."""
    columns: dict[int, dict[str, Number]] = defaultdict(dict)
    for name, form in forms.items():
        for unknown, coefficient in form.items():
            columns[unknown][name] = coefficient
    vectors = []
    for column in columns.values():
        scale = lcm(*(Fraction(each).denominator for each in column.values()))
        vectors.append({name: int(each * scale) for name, each in column.items()})
    return vectors


def _shorten(vectors: list[Vector], order: Mapping[str, int]) -> bool:
    """Subtract integer multiples of one vector from another wherever that shortens it; True if any changed."""
    holders: dict[str, set[int]] = defaultdict(set)
    for index, vector in enumerate(vectors):
        for name in vector:
            holders[name].add(index)
    changed = False
    for index in sorted(range(len(vectors)), key=lambda each: len(vectors[each])):
        taken = vectors[index]
        parameters = [name for name in taken if name in order]
        for other in sorted({each for name in parameters for each in holders[name]} - {index}):
            if len(parameters) > 2 * len(vectors[other]):  # it would add more entries than it can cancel
                continue
            times = _best_multiple(vectors[other], taken, parameters)
            if times:
                _subtract(vectors[other], taken, times, other, holders)
                changed = True
    return changed


def _best_multiple(vector: Vector, taken: Vector, names: Iterable[str]) -> int:
    """How often to subtract one vector from the other to make it shortest; 0 if that does not shorten it."""
    shared = [(vector.get(name, 0), taken[name]) for name in names]
    ratios = Counter(one // other for one, other in shared if one and one % other == 0)
    if not ratios:
        return 0
    times = max(ratios, key=lambda ratio: (ratios[ratio], -abs(ratio), ratio))
    before = sum(abs(one) for one, _ in shared)
    return times if sum(abs(one - times * other) for one, other in shared) < before else 0


def _subtract(vector: Vector, taken: Vector, times: int, index: int, holders: Mapping[str, set[int]]) -> None:
    for name, exponent in taken.items():
        left = vector.get(name, 0) - times * exponent
        if left:
            vector[name] = left
            holders[name].add(index)
        else:
            vector.pop(name, None)
            holders[name].discard(index)


def _signed(vector: Vector, order: Mapping[str, int]) -> Vector:
    """Without a common divisor, and signed so that most parameters, or else the first one, grow."""
    common = gcd(*vector.values())
    exponents = [vector[name] for name in sorted(vector.keys() & order.keys(), key=order.__getitem__)] or [1]
    growing = sum(1 if each > 0 else -1 for each in exponents)
    sign = 1 if growing > 0 or (growing == 0 and exponents[0] > 0) else -1
    return {name: sign * each // common for name, each in vector.items()}


def _split(vector: Vector, order: Mapping[str, int]) -> tuple[Vector, Vector]:
    own = {name: vector[name] for name in sorted(vector.keys() & order.keys(), key=order.__getitem__)}
    return own, {name: each for name, each in vector.items() if name not in order}
