r"""A tensor as a random field over its axes: its mean, its second moment, and how much neighbours share.

`share[a]` is $E[x_p x_{p'}]$ over pairs of elements that differ along axis $a$ only: for the tokens of a sentence what
all tokens have in common, for the keys of a row of logits what softmax ignores, for features the squared mean.
Second moments of linear maps, means, norms and attention need nothing else.

Pairs that differ along several axes are taken to share the least of these (`meet`): true where what is shared is a
part common to all (a bias, a mean, a token type), an upper bound where correlations multiply.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """Mean, second moment and shares of a tensor; a `share` of an axis of length 1 is the second moment."""

    shape: tuple[int, ...]
    mean: float
    ms: float
    share: tuple[float, ...]

    @property
    def var(self) -> float:
        return max(self.ms - self.mean * self.mean, 0.0)

    @property
    def count(self) -> int:
        return math.prod(self.shape)


def independent(shape: Sequence[int], mean: float, ms: float) -> Field:
    """Elements that share nothing but their mean."""
    return Field(
        shape=tuple(shape),
        mean=mean,
        ms=ms,
        share=tuple(ms if size == 1 else mean * mean for size in shape),
    )


def constant(shape: Sequence[int], value: float) -> Field:
    """The same number everywhere."""
    return Field(shape=tuple(shape), mean=value, ms=value * value, share=(value * value,) * len(shape))


def scaled(field: Field, factor: float) -> Field:
    """Of `factor * x`."""
    square = factor * factor
    return Field(
        shape=field.shape,
        mean=field.mean * factor,
        ms=field.ms * square,
        share=tuple([each * square for each in field.share]),
    )


def meet(shares: Iterable[float]) -> float:
    """What pairs share that differ along several axes: the least; nothing where one axis makes them cancel."""
    least = min(shares)
    return least if least > 0 else 0.0


def between(field: Field, axes: Iterable[int]) -> float:
    """$E[x_p x_{p'}]$ for pairs that differ along all of these axes."""
    chosen = [field.share[axis] for axis in axes]
    return field.ms if not chosen else chosen[0] if len(chosen) == 1 else meet(chosen)


def within(field: Field, axes: Sequence[int], also: tuple[int, ...] = ()) -> float:
    """The mean of $x_p x_{p'}$ over all pairs of places along `axes`, equal ones too: $E[\bar x^2]$.

    Pairs differ along the axes of `also` in any case.
    """
    total = 0.0
    for count in range(len(axes) + 1):
        for differing in combinations(axes, count):
            weight = 1.0
            for axis in axes:
                size = max(field.shape[axis], 1)
                weight *= 1 - 1 / size if axis in differing else 1 / size
            if weight:
                total += weight * between(field, (*also, *differing))
    return total


def averaged(field: Field, axes: Sequence[int], *, keep: bool) -> Field:
    """Of the mean over some axes."""
    rest = [axis for axis in range(len(field.shape)) if axis not in axes]
    ms = within(field, axes)
    share = {axis: within(field, axes, (axis,)) for axis in rest}
    if keep:
        shape = tuple(1 if axis in axes else size for axis, size in enumerate(field.shape))
        return Field(
            shape=shape,
            mean=field.mean,
            ms=ms,
            share=tuple(share.get(axis, ms) for axis in range(len(shape))),
        )
    shape = tuple(field.shape[axis] for axis in rest)
    return Field(shape=shape, mean=field.mean, ms=ms, share=tuple(share[axis] for axis in rest))


def summed(field: Field, axes: Sequence[int], *, keep: bool) -> Field:
    """Of the sum over some axes."""
    return scaled(averaged(field, axes, keep=keep), math.prod(field.shape[axis] for axis in axes))


def broadcast(field: Field, shape: Sequence[int]) -> Field:
    """Of the tensor expanded to `shape`: copies share everything."""
    if field.shape == tuple(shape):
        return field
    missing = len(shape) - len(field.shape)
    share = []
    for axis, size in enumerate(shape):
        own = axis - missing
        kept = own >= 0 and field.shape[own] == size
        share.append(field.share[own] if kept else field.ms)
    return Field(shape=tuple(shape), mean=field.mean, ms=field.ms, share=tuple(share))


def unbroadcast(field: Field, shape: Sequence[int]) -> Field:
    """Of the sum over the axes along which a tensor of `shape` was expanded: how gradients come back."""
    if field.shape == tuple(shape):
        return field
    missing = len(field.shape) - len(shape)
    lost = list(range(missing))
    lost += [
        axis
        for axis in range(missing, len(field.shape))
        if shape[axis - missing] == 1 and field.shape[axis] != 1
    ]
    total = summed(field, lost, keep=True)
    return Field(shape=tuple(shape), mean=total.mean, ms=total.ms, share=total.share[missing:])


def permuted(field: Field, order: Sequence[int]) -> Field:
    return Field(
        shape=tuple([field.shape[axis] for axis in order]),
        mean=field.mean,
        ms=field.ms,
        share=tuple([field.share[axis] for axis in order]),
    )


def reshaped(field: Field, shape: Sequence[int]) -> Field:
    """Of the tensor in another shape: a split axis gives its share to both parts, merged axes average theirs."""
    shape = tuple(shape)
    if shape == field.shape:
        return field
    share = [field.ms] * len(shape)
    if 0 not in shape:
        for old, new in _groups(field.shape, shape):
            found = _merged(field, old)
            for axis in new:
                share[axis] = field.ms if shape[axis] == 1 else found
    return Field(shape=shape, mean=field.mean, ms=field.ms, share=tuple(share))


def _merged(field: Field, axes: Sequence[int]) -> float:
    long = [axis for axis in axes if field.shape[axis] > 1]
    if len(long) < 2:
        return field.share[long[0]] if long else field.ms
    size = math.prod(field.shape[axis] for axis in long)
    return (size * within(field, long) - field.ms) / (size - 1)


@lru_cache(maxsize=4096)
def _groups(old: tuple[int, ...], new: tuple[int, ...]) -> list[tuple[list[int], list[int]]]:
    """The smallest runs of axes of `old` and `new` that hold the same elements."""
    groups: list[tuple[list[int], list[int]]] = []
    i = j = 0
    while i < len(old) or j < len(new):
        left, right = [], []
        before = after = 1
        while True:
            if i < len(old) and (before <= after or j >= len(new)):
                left.append(i)
                before *= old[i]
                i += 1
            elif j < len(new):
                right.append(j)
                after *= new[j]
                j += 1
            if (before == after and left and right) or (i >= len(old) and j >= len(new)):
                break
        groups.append((left, right))
    return groups


def product(a: Field, b: Field) -> Field:
    """Of the elementwise product of independent tensors of one shape."""
    share = tuple(x * y for x, y in zip(a.share, b.share, strict=True))
    return Field(shape=a.shape, mean=a.mean * b.mean, ms=a.ms * b.ms, share=share)


def contracted(a: Field, letters_a: str, b: Field, letters_b: str, out: str) -> Field:
    r"""Of $\sum_s a_{\ldots s} b_{s \ldots}$ over independent tensors, in the letters of `einsum`.

    With $n$ summed places: $E[y^2] = n\,E[a^2]E[b^2] + n(n-1)\,a_s b_s$, where $a_s$ is what places of $a$ share along
    $s$; a tensor without an index shares everything along it. The same along every axis of the result.
    """
    size = {**dict(zip(letters_a, a.shape, strict=True)), **dict(zip(letters_b, b.shape, strict=True))}
    gone = [letter for letter in size if letter not in out]
    n = math.prod(size[letter] for letter in gone)

    def pairs(*also: str) -> float:
        same = _along(a, letters_a, also) * _along(b, letters_b, also)
        apart = _apart(a, letters_a, gone, also) * _apart(b, letters_b, gone, also) if n > 1 else 0.0
        return n * same + n * (n - 1) * apart

    ms = max(
        pairs(), 0.0
    )  # shares that only roughly fit each other (a softmax that has collapsed) may cancel too far
    return Field(
        shape=tuple(size[letter] for letter in out),
        mean=n * a.mean * b.mean,
        ms=ms,
        share=tuple(ms if size[letter] == 1 else pairs(letter) for letter in out),
    )


def _along(field: Field, letters: str, differing: Iterable[str]) -> float:
    return between(field, [letters.index(each) for each in differing if each in letters])


def _apart(field: Field, letters: str, gone: Sequence[str], also: tuple[str, ...]) -> float:
    """The mean over pairs of different places along the summed axes."""
    if len(gone) == 1:
        return _along(field, letters, (*gone, *also))
    axes = [letters.index(each) for each in gone if each in letters]
    fixed = tuple(letters.index(each) for each in also if each in letters)
    n = math.prod(field.shape[axis] for axis in axes)
    if n <= 1:
        return between(field, fixed)
    return (n * within(field, axes, fixed) - between(field, fixed)) / (n - 1)
