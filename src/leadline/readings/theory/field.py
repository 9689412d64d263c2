r"""A tensor as a random field over its axes: its mean, its second moment, and how much neighbors share.

`share[a]` is $E[x_p x_{p'}]$ over pairs of elements that differ along axis $a$ only: for the tokens of a sentence what
all tokens have in common, for the keys of a row of logits what softmax ignores, for features the squared mean.
The second moments of linear maps, means, norms and attention follow from these numbers alone.

Pairs that differ along several axes are taken to share the least of these (`smallest_share`). That is exact where
what is shared is a part common to all (a bias, a mean, a token type), and an upper bound where correlations multiply.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

import msgspec
import torch

from leadline.readings.theory.position_profile import (
    PositionProfile,
    mean_pair,
    mean_root,
    merged_pairs,
    mixed,
    multiplied,
    pair_profile,
    regrouped,
    split_pairs,
)


class RandomField(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Mean, second moment and shares of a tensor; the `share` of an axis of length 1 is the second moment."""

    shape: tuple[int, ...]
    mean: float
    ms: float
    share: tuple[float, ...]
    profile: PositionProfile | None = None
    """How the second moment differs along one axis; None if it does not."""

    @property
    def var(self) -> float:
        return max(self.ms - self.mean * self.mean, 0.0)

    @property
    def count(self) -> int:
        return math.prod(self.shape)


def independent(shape: Sequence[int], mean: float, ms: float) -> RandomField:
    """The field of elements that share only their mean."""
    return RandomField(
        shape=tuple(shape),
        mean=mean,
        ms=ms,
        share=tuple(ms if size == 1 else mean * mean for size in shape),
    )


def constant(shape: Sequence[int], value: float) -> RandomField:
    """The field of a tensor with one value everywhere."""
    return RandomField(shape=tuple(shape), mean=value, ms=value * value, share=(value * value,) * len(shape))


def scaled(field: RandomField, factor: float) -> RandomField:
    """The field of `factor * x`."""
    square = factor * factor
    return RandomField(
        shape=field.shape,
        mean=field.mean * factor,
        ms=field.ms * square,
        share=tuple([each * square for each in field.share]),
        profile=field.profile,
    )


def profile_of(field: RandomField) -> PositionProfile | None:
    """The profile of a field, if it fits its shape."""
    profile = field.profile
    if profile is None or profile.axis >= len(field.shape):
        return None
    return profile if field.shape[profile.axis] == len(profile.weights) else None


def spread_within(field: RandomField) -> float:
    r"""The variance relative to the squared mean, without what positions along the profile differ in their means."""
    profile, square = profile_of(field), field.mean * field.mean
    if square <= 0:
        return math.inf if field.ms > 0 else 0.0
    root = 1.0 if profile is None else mean_root(profile)
    return max(field.ms * root * root / square - 1, 0.0)


def reweighted(field: RandomField, by: PositionProfile | None) -> RandomField:
    """The field times a number for each position, whose squares have the mean 1 and this profile."""
    if by is None:
        return field
    factor, profile = multiplied(profile_of(field), PositionProfile(by.axis, by.weights))
    scaled_up = RandomField(
        shape=field.shape,
        mean=field.mean,
        ms=field.ms * factor,
        share=tuple([each * factor for each in field.share]),
        profile=profile,
    )
    return with_pair_share(scaled_up)


def with_pair_share(field: RandomField) -> RandomField:
    """The field with the share along its profile that its pairs of positions have on average."""
    profile = field.profile
    if profile is None or profile.pairs is None or profile.axis >= len(field.shape):
        return field
    share = list(field.share)
    share[profile.axis] = field.ms * mean_pair(profile.pairs, profile.weights)
    return RandomField(shape=field.shape, mean=field.mean, ms=field.ms, share=tuple(share), profile=profile)


def with_pairs(field: RandomField, axis: int, pairs: torch.Tensor) -> RandomField:
    """The field with these moments of pairs along an axis, relative to its second moment, which they correct."""
    size, profile = pair_profile(axis, pairs)
    if profile is None:
        return field
    share = tuple([each * size for each in field.share])
    return with_pair_share(
        RandomField(shape=field.shape, mean=field.mean, ms=field.ms * size, share=share, profile=profile)
    )


def pairs_of(field: RandomField, axis: int) -> torch.Tensor:
    """The moments of pairs along an axis, relative to the second moment: given ones, or all alike."""
    profile, n = profile_of(field), field.shape[axis]
    along = profile if profile is not None and profile.axis == axis else None
    if along is not None and along.pairs is not None:
        return along.pairs
    part = field.share[axis] / field.ms if field.ms > 0 else 0.0
    if along is None:
        pairs = torch.full((n, n), part, dtype=torch.float64, device="cpu")
        pairs.diagonal().fill_(1.0)
        return pairs
    weights = torch.tensor(along.weights, dtype=torch.float64, device="cpu").clamp_min(0.0)
    roots = weights.sqrt()
    pairs = torch.outer(roots, roots)
    even = mean_pair(pairs, along.weights)
    pairs = pairs * (part / even if even > 0 else 0.0)
    pairs.diagonal().copy_(weights)
    return pairs


def sum_profile(fields: Sequence[RandomField]) -> PositionProfile | None:
    """The profile of a sum of independent tensors; their pairs add up."""
    paired = [field for field in fields if (p := profile_of(field)) is not None and p.pairs is not None]
    if not paired:
        return mixed((field.ms, profile_of(field)) for field in fields)
    axis = max(paired, key=lambda field: field.ms).profile.axis  # type: ignore[union-attr]
    total = sum(field.ms for field in fields)
    if total <= 0:
        return None
    pairs = torch.zeros(fields[0].shape[axis], fields[0].shape[axis], dtype=torch.float64, device="cpu")
    for field in fields:
        pairs.add_(pairs_of(field, axis), alpha=field.ms / total)
    return pair_profile(axis, pairs)[1]


def _moved_profile(field: RandomField, axes: Mapping[int, int]) -> PositionProfile | None:
    """The profile along the new place of its axis; None if the axis is gone."""
    profile = profile_of(field)
    if profile is None or profile.axis not in axes:
        return None
    return PositionProfile(axes[profile.axis], profile.weights, profile.pairs)


def smallest_share(shares: Iterable[float]) -> float:
    """What pairs share that differ along several axes: the smallest share, or zero if one is negative."""
    smallest = min(shares)
    return smallest if smallest > 0 else 0.0


def pair_moment(field: RandomField, axes: Sequence[int]) -> float:
    """$E[x_p x_{p'}]$ for pairs that differ along all of these axes."""
    if not axes:
        return field.ms
    return field.share[axes[0]] if len(axes) == 1 else smallest_share([field.share[axis] for axis in axes])


def mean_pair_moment(field: RandomField, axes: Sequence[int], also: tuple[int, ...] = ()) -> float:
    r"""The mean of $x_p x_{p'}$ over all pairs of positions along `axes`, including equal ones: $E[\bar x^2]$.

    All pairs differ along the axes of `also`. What a pair shares is the least over the axes along which it differs
    (`smallest_share`). With axes in the order of their shares $s_1 \le s_2 \le \ldots$ and lengths $n_k$, the first
    axis that differs decides: $\sum_k s_k\,(1 - 1/n_k) \prod_{j<k} 1/n_j$, plus what equal positions share times
    $\prod_j 1/n_j$.
    """
    shape, share = field.shape, field.share
    sides = sorted([(share[axis], shape[axis] or 1) for axis in axes])
    bound = min([share[axis] for axis in also], default=math.inf)
    total, equal = 0.0, 1.0
    for value, size in sides:
        if size > 1 and value > 0 and bound > 0:
            total += equal * (1 - 1 / size) * (value if value < bound else bound)
        equal /= size
    total += equal * pair_moment(field, also)
    if not also and sides and sides[0][0] < 0:  # a share along a single axis may be negative
        total += sum(equal * (size - 1) * value for value, size in sides if value < 0)
    return total if also else max(total, field.mean * field.mean)  # the variance of a mean is not negative


def averaged(field: RandomField, axes: Sequence[int], *, keep: bool) -> RandomField:
    """The field of the mean over some axes."""
    rest = [axis for axis in range(len(field.shape)) if axis not in axes]
    ms = mean_pair_moment(field, axes)
    share = {axis: mean_pair_moment(field, axes, (axis,)) for axis in rest}
    if keep:
        shape = tuple(1 if axis in axes else size for axis, size in enumerate(field.shape))
        return RandomField(
            shape=shape,
            mean=field.mean,
            ms=ms,
            share=tuple(share.get(axis, ms) for axis in range(len(shape))),
            profile=_moved_profile(field, {axis: axis for axis in rest}),
        )
    return RandomField(
        shape=tuple(field.shape[axis] for axis in rest),
        mean=field.mean,
        ms=ms,
        share=tuple(share[axis] for axis in rest),
        profile=_moved_profile(field, {axis: place for place, axis in enumerate(rest)}),
    )


def summed(field: RandomField, axes: Sequence[int], *, keep: bool) -> RandomField:
    """The field of the sum over some axes."""
    return scaled(averaged(field, axes, keep=keep), math.prod(field.shape[axis] for axis in axes))


def broadcast(field: RandomField, shape: Sequence[int]) -> RandomField:
    """The field of the tensor expanded to `shape`: copies share everything."""
    if field.shape == tuple(shape):
        return field
    missing = len(shape) - len(field.shape)
    share = []
    for axis, size in enumerate(shape):
        own = axis - missing
        unchanged = own >= 0 and field.shape[own] == size
        share.append(field.share[own] if unchanged else field.ms)
    kept = {own: own + missing for own, size in enumerate(field.shape) if shape[own + missing] == size}
    return RandomField(
        shape=tuple(shape),
        mean=field.mean,
        ms=field.ms,
        share=tuple(share),
        profile=_moved_profile(field, kept) if field.profile is not None else None,
    )


def unbroadcast(field: RandomField, shape: Sequence[int]) -> RandomField:
    """The field of the sum over the axes along which a tensor of `shape` was expanded: how gradients pass back."""
    if field.shape == tuple(shape):
        return field
    missing = len(field.shape) - len(shape)
    summed_axes = list(range(missing))
    summed_axes += [
        axis
        for axis in range(missing, len(field.shape))
        if shape[axis - missing] == 1 and field.shape[axis] != 1
    ]
    total = summed(field, summed_axes, keep=True)
    kept = {axis: axis - missing for axis in range(missing, len(field.shape))}
    return RandomField(
        shape=tuple(shape),
        mean=total.mean,
        ms=total.ms,
        share=total.share[missing:],
        profile=_moved_profile(total, kept),
    )


def permuted(field: RandomField, order: Sequence[int]) -> RandomField:
    """The field of the tensor with its axes in another order."""
    return RandomField(
        shape=tuple([field.shape[axis] for axis in order]),
        mean=field.mean,
        ms=field.ms,
        share=tuple([field.share[axis] for axis in order]),
        profile=_moved_profile(field, {axis: place for place, axis in enumerate(order)})
        if field.profile is not None
        else None,
    )


def reshaped(field: RandomField, shape: Sequence[int]) -> RandomField:
    """The field of the tensor in another shape: a split axis gives its share to both parts, merged axes average."""
    shape = tuple(shape)
    if shape == field.shape:
        return field
    share = [field.ms] * len(shape)
    if 0 not in shape:
        for old, new in _groups(field.shape, shape):
            merged = _merged_share(field, old)
            for axis in new:
                share[axis] = field.ms if shape[axis] == 1 else merged
    profile = _reshaped_profile(field, shape) if field.profile is not None else None
    whole = RandomField(shape=shape, mean=field.mean, ms=field.ms, share=tuple(share), profile=profile)
    return whole if profile is None or profile.pairs is None else with_pair_share(whole)


def _reshaped_profile(field: RandomField, shape: tuple[int, ...]) -> PositionProfile | None:
    profile = profile_of(field)
    if profile is None or 0 in shape:
        return None
    for old, new in _groups(field.shape, shape):
        if profile.axis in old and new:
            same = [axis for axis in new if shape[axis] == field.shape[profile.axis]]
            if same and all(field.shape[axis] == 1 for axis in old if axis != profile.axis):
                return PositionProfile(same[0], profile.weights, profile.pairs)
            inner = PositionProfile(profile.axis - old[0], profile.weights)
            sizes = tuple([field.shape[axis] for axis in old]), tuple([shape[axis] for axis in new])
            whole = regrouped(inner, *sizes, new[0])
            if profile.pairs is None or field.ms <= 0:
                return whole
            if len(new) == 1 and profile.axis == old[-1]:
                apart = pair_moment(field, old[:-1]) / field.ms
                return merged_pairs(profile, new[0], shape[new[0]], apart) or whole
            even = whole is None or whole.axis == new[-1]
            return split_pairs(profile, new[-1], shape[new[-1]]) if len(old) == 1 and even else whole
    return None


def _merged_share(field: RandomField, axes: Sequence[int]) -> float:
    long = [axis for axis in axes if field.shape[axis] > 1]
    if len(long) < 2:
        return field.share[long[0]] if long else field.ms
    size = math.prod(field.shape[axis] for axis in long)
    return (size * mean_pair_moment(field, long) - field.ms) / (size - 1)


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
    """The field of the elementwise product of independent tensors of one shape."""
    one, other = profile_of(a), profile_of(b)
    paired = next((p for p in (one, other) if p is not None and p.pairs is not None), None)
    if paired is not None:
        even = tuple(x * y for x, y in zip(a.share, b.share, strict=True))
        plain = RandomField(shape=a.shape, mean=a.mean * b.mean, ms=a.ms * b.ms, share=even)
        if one is None or other is None:
            return _with_even_factor(plain, paired, b if one is not None else a)
        return with_pairs(plain, paired.axis, pairs_of(a, paired.axis) * pairs_of(b, paired.axis))
    factor, profile = multiplied(one, other)
    share = tuple(factor * x * y for x, y in zip(a.share, b.share, strict=True))
    return RandomField(
        shape=a.shape, mean=a.mean * b.mean, ms=factor * a.ms * b.ms, share=share, profile=profile
    )


def _with_even_factor(plain: RandomField, paired: PositionProfile, even: RandomField) -> RandomField:
    """The product of a tensor with pairs and one whose positions are alike; positions stay, pairs share less."""
    part = even.share[paired.axis] / even.ms if even.ms > 0 else 0.0
    pairs = paired.pairs
    if pairs is not None and part != 1.0:
        pairs = pairs * part
        pairs.diagonal().copy_(torch.tensor(paired.weights, dtype=torch.float64, device="cpu"))
    profile = paired._replace(pairs=pairs)
    return with_pair_share(
        RandomField(shape=plain.shape, mean=plain.mean, ms=plain.ms, share=plain.share, profile=profile)
    )


def contracted(a: RandomField, letters_a: str, b: RandomField, letters_b: str, out: str) -> RandomField:
    r"""The field of $\sum_s a_{\ldots s} b_{s \ldots}$ over independent tensors, in the letters of `einsum`.

    With $n$ summed positions: $E[y^2] = n\,E[a^2]E[b^2] + n(n-1)\,a_s b_s$, where $a_s$ is what positions of $a$ share
    along $s$; a tensor without an index shares everything along it. The shares of the result follow in the same way.
    """
    plan = _plan(letters_a, a.shape, letters_b, b.shape, out)
    n = plan.summed
    even, profile = _contracted_profile(a, letters_a, b, letters_b, out)

    def pairs(along: _Axes) -> float:
        same = pair_moment(a, along.left) * pair_moment(b, along.right)
        apart = (
            _apart(a, plan.gone.left, along.left) * _apart(b, plan.gone.right, along.right) if n > 1 else 0.0
        )
        return n * even * same + n * (n - 1) * apart

    # Shares that fit each other only roughly (a collapsed softmax) may make the sum negative.
    ms = max(pairs(_Axes()), 0.0)
    share = tuple([ms if along is None else pairs(along) for along in plan.along])
    return RandomField(shape=plan.shape, mean=n * a.mean * b.mean, ms=ms, share=share, profile=profile)


def _contracted_profile(
    a: RandomField, letters_a: str, b: RandomField, letters_b: str, out: str
) -> tuple[float, PositionProfile | None]:
    """What the profiles of both factors do to the sum of products at equal positions, and the profile of the result."""
    if a.profile is None and b.profile is None:
        return 1.0, None
    lettered: list[tuple[str, PositionProfile]] = []
    for field, letters in ((a, letters_a), (b, letters_b)):
        profile = profile_of(field)
        if profile is not None:
            lettered.append((letters[profile.axis], profile))
    both = set(letters_a) & set(letters_b)
    kept = [
        PositionProfile(out.index(letter), each.weights, None if letter in both else each.pairs)
        for letter, each in lettered
        if letter in out
    ]
    profile = None
    for each in kept:
        profile = multiplied(profile, each)[1]
    factor = 1.0
    if len(lettered) == 2 and lettered[0][0] == lettered[1][0]:
        factor = multiplied(
            PositionProfile(0, lettered[0][1].weights), PositionProfile(0, lettered[1][1].weights)
        )[0]
    return factor, profile


class _Axes(NamedTuple):
    """Axes of the two factors."""

    left: tuple[int, ...] = ()
    right: tuple[int, ...] = ()


class _Plan(NamedTuple):
    """Which axes of each factor a contraction sums over, and which become axes of the result."""

    shape: tuple[int, ...]
    summed: int
    """Number of positions that are summed over."""
    gone: _Axes
    along: tuple[_Axes | None, ...]
    """Axes of the factors for each axis of the result; None if it has length 1."""


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
    """The mean over pairs of different positions along the summed axes; all pairs differ along the `fixed` ones."""
    if len(gone) == 1:
        return pair_moment(field, gone + fixed)
    n = math.prod([field.shape[axis] for axis in gone])
    if n <= 1:
        return pair_moment(field, fixed)
    return (n * mean_pair_moment(field, gone, fixed) - pair_moment(field, fixed)) / (n - 1)
