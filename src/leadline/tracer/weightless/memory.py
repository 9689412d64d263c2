"""What each storage of a fake tensor would contain, region by region."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from leadline.tracer.weightless.distribution import (
    UNWRITTEN,
    Distribution,
    MaybeDistribution,
    RandomDraw,
    Unknown,
    mixture,
    of_values,
    real_tensors,
)

Box = tuple[tuple[int, int], ...]
"""A region of a tensor: a half-open range in each dimension."""


def whole_box(shape: Sequence[int]) -> Box:
    return tuple((0, size) for size in shape)


def volume(box: Box) -> int:
    return math.prod(stop - start for start, stop in box)


def intersect(a: Box, b: Box) -> Box | None:
    """Return the intersection of two boxes; None if it is empty."""
    common = tuple((max(p[0], q[0]), min(p[1], q[1])) for p, q in zip(a, b, strict=True))
    return common if all(start < stop for start, stop in common) else None


def subtract(box: Box, hole: Box) -> Iterator[Box]:
    """Yield disjoint boxes that cover `box` without `hole`, which lies inside it."""
    left = list(box)
    for dim, ((start, stop), (low, high)) in enumerate(zip(box, hole, strict=True)):
        if start < low:
            yield (*left[:dim], (start, low), *left[dim + 1 :])
        if high < stop:
            yield (*left[:dim], (high, stop), *left[dim + 1 :])
        left[dim] = (low, high)


def join_boxes(a: Box, b: Box) -> Box | None:
    """Return two boxes as one, if they are adjacent along one dimension and equal in all others; else None."""
    differing = [dim for dim, (p, q) in enumerate(zip(a, b, strict=True)) if p != q]
    if len(differing) != 1 or a[differing[0]][1] != b[differing[0]][0]:
        return None
    dim = differing[0]
    return (*a[:dim], (a[dim][0], b[dim][1]), *a[dim + 1 :])


def box_of_view(
    shape: Sequence[int], strides: Sequence[int], size: Sequence[int], steps: Sequence[int], offset: int
) -> Box | None:
    """Return the box of a tensor (`shape`, `strides`) covered by a view (`size`, `steps`, `offset`); None if no box."""
    dims = sorted((dim for dim, n in enumerate(shape) if n > 1), key=lambda dim: -strides[dim])
    start = dict.fromkeys(range(len(shape)), 0)
    for dim in dims:
        start[dim], offset = divmod(offset, strides[dim])
    if offset or any(start[dim] >= shape[dim] for dim in dims):
        return None
    length = dict.fromkeys(range(len(shape)), 1)
    by_stride = {strides[dim]: dim for dim in dims}
    for count, step in _merged(size, steps):
        while count > 1:
            if step not in by_stride:
                return None
            dim = by_stride.pop(step)
            if start[dim] + count <= shape[dim]:
                length[dim], count = count, 1
            elif start[dim] == 0 and count % shape[dim] == 0:
                length[dim] = shape[dim]
                count, step = count // shape[dim], step * shape[dim]
            else:
                return None
    return tuple((start[dim], start[dim] + length[dim]) for dim in range(len(shape)))


def _merged(size: Sequence[int], steps: Sequence[int]) -> list[tuple[int, int]]:
    """Return size and stride of the dimensions of a view; dimensions that are contiguous in memory become one."""
    dims: list[tuple[int, int]] = []
    for count, step in zip(size, steps, strict=True):
        if count == 1 or step == 0:
            continue
        if dims and dims[-1][1] == step * count:
            dims[-1] = (dims[-1][0] * count, step)
        else:
            dims.append((count, step))
    return dims


# The contents of one storage: distributions, each in its own box, or the numbers themselves if there are few.

# Heuristic: initializers write a handful of slices; more of them form a pattern that boxes do not describe.
MAX_PIECES = 256


@dataclass(slots=True)
class Contents:
    """The contents of a storage that was allocated for a tensor of `shape` and `strides`; disjoint pieces cover it."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    pieces: list[tuple[Box, MaybeDistribution]] = field(default_factory=list)
    values: Tensor | None = None
    """All elements in memory order, flat; if given, the pieces are ignored."""

    def __post_init__(self) -> None:
        self.pieces = [(whole_box(self.shape), UNWRITTEN)]

    @property
    def count(self) -> int:
        return volume(whole_box(self.shape))

    def fill(self, distribution: MaybeDistribution) -> None:
        """Give all elements this distribution."""
        self.pieces, self.values = [(whole_box(self.shape), distribution)], None

    def write(self, box: Box, distribution: MaybeDistribution) -> None:
        self.change(box, lambda _: distribution)

    def change(self, box: Box, function: Callable[[MaybeDistribution], MaybeDistribution]) -> None:
        """Replace the distributions inside the box by a function of them."""
        pieces: list[tuple[Box, MaybeDistribution]] = []
        for place, distribution in self.pieces:
            common = intersect(place, box)
            if common is None:
                _append(pieces, place, distribution)
                continue
            _append(pieces, common, function(distribution))
            for rest in subtract(place, common):
                _append(pieces, rest, distribution)
        self.pieces = pieces
        if len(pieces) > MAX_PIECES:
            self.fill(Unknown(f"written in more than {MAX_PIECES} separate pieces"))

    def scatter(self, box: Box | None, share: float, distribution: MaybeDistribution) -> None:
        """Write a share of the elements of the box (None: of all elements) at unknown places."""
        if box is None and len(self.pieces) > 1:
            self.fill(Unknown("written in a pattern that is not followed"))
            return
        self.change(box or whole_box(self.shape), lambda before: _partly_written(before, share, distribution))

    def read(self, box: Box | None) -> MaybeDistribution:
        """Return the distribution inside a box; None stands for an unknown region, which must not be mixed."""
        if box is None and len(self.pieces) > 1:
            return Unknown("read in a pattern that is not followed")
        parts = [
            (intersect(place, box) if box else place, distribution) for place, distribution in self.pieces
        ]
        inside = [(place, distribution) for place, distribution in parts if place is not None]
        total = sum(volume(place) for place, _ in inside)
        if len(inside) == 1 or not total:
            return inside[0][1] if inside else UNWRITTEN
        return _mix([(volume(place) / total, distribution) for place, distribution in inside])

    def sources(self) -> list[RandomDraw]:
        """Return the draws that the elements come from, each once."""
        draws = [
            distribution.source.root for _, distribution in self.pieces if distribution.source is not None
        ]
        return list(dict.fromkeys(draws))


def _append(pieces: list[tuple[Box, MaybeDistribution]], box: Box, distribution: MaybeDistribution) -> None:
    """Add a piece, merged with an adjacent equal one, so that a loop over columns leaves two pieces."""
    for at, (place, present) in enumerate(pieces):
        both = (
            (join_boxes(place, box) or join_boxes(box, place)) if _are_equal(present, distribution) else None
        )
        if both is not None:
            pieces[at] = (both, distribution)
            return
    pieces.append((box, distribution))


def _are_equal(a: MaybeDistribution, b: MaybeDistribution) -> bool:
    if a is b:
        return True
    if isinstance(a, Unknown) or isinstance(b, Unknown):
        return isinstance(a, Unknown) and isinstance(b, Unknown) and a.why == b.why
    return (a.mean, a.ms, a.how, a.mixed) == (b.mean, b.ms, b.how, b.mixed) and a.source is b.source


def _mix(parts: Sequence[tuple[float, MaybeDistribution]]) -> MaybeDistribution:
    unknown = next((distribution for _, distribution in parts if isinstance(distribution, Unknown)), None)
    if unknown is not None:
        return Unknown(f"in part {unknown.why}", unknown.source)
    return mixture(
        [(share, distribution) for share, distribution in parts if isinstance(distribution, Distribution)]
    )


def _partly_written(
    before: MaybeDistribution, share: float, distribution: MaybeDistribution
) -> MaybeDistribution:
    """Return the distribution after a share of the elements was written at unknown places.

    A second such write is not followed, because it may overwrite what the first one wrote.
    """
    if share >= 1:
        return distribution
    if isinstance(before, Distribution) and before.mixed:
        return Unknown("written in a pattern that is not followed", before.source)
    return _mix([(1 - share, before), (share, distribution)])


# The contents of all storages. Views, `.data`, detached tensors and parameters share the storage of their tensor.

# Heuristic: elements of a tensor whose numbers are held; position tables and masks are smaller, large weights are not.
MAX_KNOWN_ELEMENTS = 2**22
# Heuristic: bytes of numbers held at a time; an eighth of the gigabyte that a whole prediction may take.
MAX_KNOWN_BYTES = 2**27
# Heuristic: allocations between two removals of dead storages; each removal then costs little per allocation.
SWEEP_INTERVAL = 20_000


class Memory:
    """The contents of each storage, as long as the storage lives."""

    def __init__(self) -> None:
        self._contents: dict[int, tuple[StorageWeakRef, Contents]] = {}
        self._known_bytes = 0
        self._sweep_at = SWEEP_INTERVAL

    def allocate(self, tensor: Tensor) -> Contents:
        """Return new, unwritten contents for the storage of a tensor."""
        storage = tensor.untyped_storage()
        contents = Contents(tuple(tensor.shape), tuple(tensor.stride()))
        self._contents[storage._cdata] = (StorageWeakRef(storage), contents)  # type: ignore[no-untyped-call]
        if len(self._contents) > self._sweep_at:
            self._sweep()
        return contents

    def find(self, tensor: Tensor) -> Contents | None:
        cell = self._contents.get(tensor.untyped_storage()._cdata)
        gone = cell is None or cell[0].expired()  # type: ignore[no-untyped-call]
        return None if cell is None or gone else cell[1]

    def distribution(self, tensor: Tensor) -> MaybeDistribution:
        """Return the distribution of the elements of a tensor, or why it is unknown."""
        contents = self.find(tensor)
        if contents is None:
            return Unknown("made by an op that is not followed")
        if contents.values is not None:
            with real_tensors():
                return of_values(_view(contents.values, tensor), "values")
        if tensor.numel() == contents.count:
            return contents.read(whole_box(contents.shape))
        return contents.read(self._box(contents, tensor))

    def pieces(self, tensor: Tensor) -> list[tuple[Box, MaybeDistribution]] | None:
        """Return the distributions of a tensor box by box, if it covers its whole storage; else None."""
        contents = self.find(tensor)
        if contents is None or contents.values is not None or not _is_whole(contents, tensor):
            return None
        return contents.pieces

    def sources(self, tensor: Tensor) -> list[RandomDraw]:
        contents = self.find(tensor)
        return [] if contents is None else contents.sources()

    def values(self, tensor: Tensor) -> Tensor | None:
        """Return the elements themselves, if they are known (or constant) and few; else None."""
        contents = self.find(tensor)
        if contents is None:
            return None
        if contents.values is None and not self._materialize(contents, tensor):
            return None
        assert contents.values is not None
        return _view(contents.values, tensor)

    def write(self, tensor: Tensor, distribution: MaybeDistribution) -> None:
        contents = self.find(tensor) or self.allocate(tensor)
        if tensor.numel() == contents.count:
            self._release(contents)
            contents.fill(distribution)
            return
        if self._write_values(contents, tensor, distribution):
            return
        box = self._box(contents, tensor)
        if box is None:
            contents.scatter(None, tensor.numel() / contents.count, distribution)
        else:
            contents.write(box, distribution)

    def write_pieces(self, tensor: Tensor, pieces: list[tuple[Box, MaybeDistribution]]) -> None:
        """Write the pieces of another tensor of the same shape and strides."""
        contents = self.find(tensor) or self.allocate(tensor)
        self._release(contents)
        contents.pieces = list(pieces)

    def scatter(self, tensor: Tensor, share: float, distribution: MaybeDistribution) -> None:
        """Write a share of the elements of a tensor at unknown places."""
        contents = self.find(tensor) or self.allocate(tensor)
        self._forget_values(contents)
        contents.scatter(self._box(contents, tensor), share, distribution)

    def write_values(self, tensor: Tensor, values: Tensor) -> bool:
        """Hold the numbers of a new tensor; return False if there are too many."""
        size = values.numel() * values.element_size()
        if values.numel() > MAX_KNOWN_ELEMENTS or self._known_bytes + size > MAX_KNOWN_BYTES:
            return False
        contents = self.find(tensor) or self.allocate(tensor)
        if not _is_whole(contents, tensor):
            return False
        self._release(contents)
        flat = torch.empty(contents.count, dtype=values.dtype)
        flat.as_strided(tensor.shape, tensor.stride(), 0).copy_(values)
        contents.values = flat
        self._known_bytes += size
        return True

    def _write_values(self, contents: Contents, tensor: Tensor, distribution: MaybeDistribution) -> bool:
        """Write a constant into a part of known numbers, which stay known; return False if that is not the case."""
        if contents.values is None:
            return False
        if isinstance(distribution, Distribution) and distribution.is_constant:
            with real_tensors():
                _view(contents.values, tensor).fill_(distribution.mean)
            return True
        self._forget_values(contents)
        return False

    def _forget_values(self, contents: Contents) -> None:
        """Replace known numbers by their distribution, because what is written next is random."""
        if contents.values is not None:
            with real_tensors():
                distribution = of_values(contents.values, "values")
            self._release(contents)
            contents.fill(replace(distribution, mixed=True))

    def _materialize(self, contents: Contents, tensor: Tensor) -> bool:
        distributions = [distribution for _, distribution in contents.pieces]
        size = contents.count * tensor.element_size()
        if not all(
            isinstance(distribution, Distribution) and distribution.is_constant
            for distribution in distributions
        ):
            return False
        if contents.count > MAX_KNOWN_ELEMENTS or self._known_bytes + size > MAX_KNOWN_BYTES:
            return False
        with real_tensors():
            flat = torch.empty(contents.count, dtype=tensor.dtype)
            whole_tensor = flat.as_strided(contents.shape, contents.strides, 0)
            for box, distribution in contents.pieces:
                whole_tensor[tuple(slice(*part) for part in box)] = (
                    distribution.mean if isinstance(distribution, Distribution) else math.nan
                )
        contents.values = flat
        self._known_bytes += size
        return True

    def _box(self, contents: Contents, tensor: Tensor) -> Box | None:
        if tensor.numel() == contents.count:
            return whole_box(contents.shape)
        size, steps, offset = tuple(tensor.shape), tuple(tensor.stride()), int(tensor.storage_offset())
        return box_of_view(contents.shape, contents.strides, size, steps, offset)

    def _release(self, contents: Contents) -> None:
        if contents.values is not None:
            self._known_bytes -= contents.values.numel() * contents.values.element_size()
            contents.values = None

    def _sweep(self) -> None:
        for key, (reference, contents) in list(self._contents.items()):
            if reference.expired():  # type: ignore[no-untyped-call]
                self._release(contents)
                del self._contents[key]
        self._sweep_at = len(self._contents) + SWEEP_INTERVAL


@real_tensors()
def _view(flat: Tensor, like: Tensor) -> Tensor:
    return flat.as_strided(like.shape, like.stride(), like.storage_offset())


def _is_whole(contents: Contents, tensor: Tensor) -> bool:
    same = contents.shape == tuple(tensor.shape) and contents.strides == tuple(tensor.stride())
    return same and tensor.storage_offset() == 0
