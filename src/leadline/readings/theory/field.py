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
from functools import lru_cache
from typing import NamedTuple

import msgspec


class RandomField(msgspec.Struct, frozen=True, kw_only=True, gc=False):
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


def independent(shape: Sequence[int], mean: float, ms: float) -> RandomField:
    """Elements that share nothing but their mean."""
    return RandomField(
        shape=tuple(shape),
        mean=mean,
        ms=ms,
        share=tuple(ms if size == 1 else mean * mean for size in shape),
    )


def constant(shape: Sequence[int], value: float) -> RandomField:
    """The same number everywhere."""
    return RandomField(shape=tuple(shape), mean=value, ms=value * value, share=(value * value,) * len(shape))


def scaled(field: RandomField, factor: float) -> RandomField:
    """Of `factor * x`."""
    square = factor * factor
    return RandomField(
        shape=field.shape,
        mean=field.mean * factor,
        ms=field.ms * square,
        share=tuple([each * square for each in field.share]),
    )


def meet(shares: Iterable[float]) -> float:
    """What pairs share that differ along several axes: the least; nothing where one axis makes them cancel."""
    least = min(shares)
    return least if least > 0 else 0.0


def between(field: RandomField, axes: Sequence[int]) -> float:
    """$E[x_p x_{p'}]$ for pairs that differ along all of these axes."""
    if not axes:
        return field.ms
    return field.share[axes[0]] if len(axes) == 1 else meet([field.share[axis] for axis in axes])


def within(field: RandomField, axes: Sequence[int], also: tuple[int, ...] = ()) -> float:
    r"""The mean of $x_p x_{p'}$ over all pairs of places along `axes`, equal ones too: $E[\bar x^2]$.

    Pairs differ along the axes of `also` in any case. What a pair shares is the least over the axes along which it
    differs (`meet`): with axes in the order of their shares $s_1 \le s_2 \le \ldots$, lengths $n_k$, the first that
    differs decides: $\sum_k s_k\,(1 - 1/n_k) \prod_{j<k} 1/n_j$, and what equal places share times $\prod_j 1/n_j$.
    """
    shape, share = field.shape, field.share
    sides = sorted([(share[axis], shape[axis] or 1) for axis in axes])
    bound = min([share[axis] for axis in also], default=math.inf)
    total, equal = 0.0, 1.0
    for value, size in sides:
        if size > 1 and value > 0 and bound > 0:
            total += equal * (1 - 1 / size) * (value if value < bound else bound)
        equal /= size
    total += equal * between(field, also)
    if not also and sides and sides[0][0] < 0:  # along one axis alone nothing is cut off at 0
        total += sum(equal * (size - 1) * value for value, size in sides if value < 0)
    return total


def averaged(field: RandomField, axes: Sequence[int], *, keep: bool) -> RandomField:
    """Of the mean over some axes."""
    rest = [axis for axis in range(len(field.shape)) if axis not in axes]
    ms = within(field, axes)
    share = {axis: within(field, axes, (axis,)) for axis in rest}
    if keep:
        shape = tuple(1 if axis in axes else size for axis, size in enumerate(field.shape))
        return RandomField(
            shape=shape,
            mean=field.mean,
            ms=ms,
            share=tuple(share.get(axis, ms) for axis in range(len(shape))),
        )
    shape = tuple(field.shape[axis] for axis in rest)
    return RandomField(shape=shape, mean=field.mean, ms=ms, share=tuple(share[axis] for axis in rest))


def summed(field: RandomField, axes: Sequence[int], *, keep: bool) -> RandomField:
    """Of the sum over some axes."""
    return scaled(averaged(field, axes, keep=keep), math.prod(field.shape[axis] for axis in axes))


def broadcast(field: RandomField, shape: Sequence[int]) -> RandomField:
    """Of the tensor expanded to `shape`: copies share everything."""
    if field.shape == tuple(shape):
        return field
    missing = len(shape) - len(field.shape)
    share = []
    for axis, size in enumerate(shape):
        own = axis - missing
        kept = own >= 0 and field.shape[own] == size
        share.append(field.share[own] if kept else field.ms)
    return RandomField(shape=tuple(shape), mean=field.mean, ms=field.ms, share=tuple(share))


def unbroadcast(field: RandomField, shape: Sequence[int]) -> RandomField:
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
    return RandomField(shape=tuple(shape), mean=total.mean, ms=total.ms, share=total.share[missing:])


def permuted(field: RandomField, order: Sequence[int]) -> RandomField:
    return RandomField(
        shape=tuple([field.shape[axis] for axis in order]),
        mean=field.mean,
        ms=field.ms,
        share=tuple([field.share[axis] for axis in order]),
    )


def reshaped(field: RandomField, shape: Sequence[int]) -> RandomField:
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
    return RandomField(shape=shape, mean=field.mean, ms=field.ms, share=tuple(share))


def _merged(field: RandomField, axes: Sequence[int]) -> float:
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


def product(a: RandomField, b: RandomField) -> RandomField:
    """Of the elementwise product of independent tensors of one shape."""
    share = tuple(x * y for x, y in zip(a.share, b.share, strict=True))
    return RandomField(shape=a.shape, mean=a.mean * b.mean, ms=a.ms * b.ms, share=share)


def contracted(a: RandomField, letters_a: str, b: RandomField, letters_b: str, out: str) -> RandomField:
    r"""Of $\sum_s a_{\ldots s} b_{s \ldots}$ over independent tensors, in the letters of `einsum`.

    With $n$ summed places: $E[y^2] = n\,E[a^2]E[b^2] + n(n-1)\,a_s b_s$, where $a_s$ is what places of $a$ share along
    $s$; a tensor without an index shares everything along it. The same along every axis of the result.
    """
    plan = _plan(letters_a, a.shape, letters_b, b.shape, out)
    n = plan.summed

    def pairs(along: _Axes) -> float:
        same = between(a, along.left) * between(b, along.right)
        apart = (
            _apart(a, plan.gone.left, along.left) * _apart(b, plan.gone.right, along.right) if n > 1 else 0.0
        )
        return n * same + n * (n - 1) * apart

    ms = max(
        pairs(_Axes()), 0.0
    )  # shares that only roughly fit each other (a softmax that has collapsed) may cancel too far
    share = tuple([ms if along is None else pairs(along) for along in plan.along])
    return RandomField(shape=plan.shape, mean=n * a.mean * b.mean, ms=ms, share=share)


class _Axes(NamedTuple):
    """Axes of the two factors."""

    left: tuple[int, ...] = ()
    right: tuple[int, ...] = ()


class _Plan(NamedTuple):
    """Which axes of which factor a contraction sums over, and which make the axes of the result."""

    shape: tuple[int, ...]
    summed: int
    """Places that are summed over."""
    gone: _Axes
    along: tuple[_Axes | None, ...]
    """For each axis of the result; None if it has length 1."""


@lru_cache(maxsize=4096)
def _plan(
    letters_a: str, shape_a: tuple[int, ...], letters_b: str, shape_b: tuple[int, ...], out: str
) -> _Plan:
    size = {**dict(zip(letters_a, shape_a, strict=True)), **dict(zip(letters_b, shape_b, strict=True))}

    def axes(letters: Sequence[str]) -> _Axes:
        return _Axes(
            tuple(letters_a.index(each) for each in letters if each in letters_a),
            tuple(letters_b.index(each) for each in letters if each in letters_b),
        )

    gone = [letter for letter in size if letter not in out]
    return _Plan(
        shape=tuple(size[letter] for letter in out),
        summed=math.prod(size[letter] for letter in gone),
        gone=axes(gone),
        along=tuple(None if size[letter] == 1 else axes(letter) for letter in out),
    )


def _apart(field: RandomField, gone: tuple[int, ...], fixed: tuple[int, ...]) -> float:
    """The mean over pairs of different places along the summed axes; all pairs differ along the `fixed` ones."""
    if len(gone) == 1:
        return between(field, gone + fixed)
    n = math.prod([field.shape[axis] for axis in gone])
    if n <= 1:
        return between(field, fixed)
    return (n * within(field, gone, fixed) - between(field, fixed)) / (n - 1)
