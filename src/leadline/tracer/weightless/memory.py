"""Memory without memory: what each storage of a fake tensor would contain, region by region."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from leadline.tracer.weightless.law import UNWRITTEN, Known, Law, Source, Unknown, mixture, of_values, real

Box = tuple[tuple[int, int], ...]
"""A half-open range in each dimension of the whole tensor."""


def whole(shape: Sequence[int]) -> Box:
    return tuple((0, size) for size in shape)


def volume(box: Box) -> int:
    return math.prod(stop - start for start, stop in box)


def meet(a: Box, b: Box) -> Box | None:
    """What both have in common; None if that is nothing."""
    common = tuple((max(p[0], q[0]), min(p[1], q[1])) for p, q in zip(a, b, strict=True))
    return common if all(start < stop for start, stop in common) else None


def without(box: Box, hole: Box) -> Iterator[Box]:
    """Disjoint boxes that cover `box` except `hole`, which lies inside it."""
    left = list(box)
    for dim, ((start, stop), (low, high)) in enumerate(zip(box, hole, strict=True)):
        if start < low:
            yield (*left[:dim], (start, low), *left[dim + 1 :])
        if high < stop:
            yield (*left[:dim], (high, stop), *left[dim + 1 :])
        left[dim] = (low, high)


def joined(a: Box, b: Box) -> Box | None:
    """The two as one box, if they are neighbours along one dimension and alike in all others."""
    apart = [dim for dim, (p, q) in enumerate(zip(a, b, strict=True)) if p != q]
    if len(apart) != 1 or a[apart[0]][1] != b[apart[0]][0]:
        return None
    dim = apart[0]
    return (*a[:dim], (a[dim][0], b[dim][1]), *a[dim + 1 :])


def box_of_view(
    shape: Sequence[int], strides: Sequence[int], size: Sequence[int], steps: Sequence[int], offset: int
) -> Box | None:
    """The box that a view (`size`, `steps`, `offset`) is of a tensor (`shape`, `strides`); None if it is not a box."""
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
    """Dimensions of a view, with those joined that lie behind one another in memory."""
    found: list[tuple[int, int]] = []
    for count, step in zip(size, steps, strict=True):
        if count == 1 or step == 0:
            continue
        if found and found[-1][1] == step * count:
            found[-1] = (found[-1][0] * count, step)
        else:
            found.append((count, step))
    return found


# What one piece of memory holds: laws, each in its own box; or, where that is cheap, the numbers themselves.

MANY_PIECES = (
    256  # ours: initialisers write a handful of slices; more is a pattern that boxes do not describe
)


@dataclass(slots=True)
class Contents:
    """Pieces are disjoint and cover the whole of a tensor of `shape` and `strides`."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    pieces: list[tuple[Box, Known]] = field(default_factory=list)
    values: Tensor | None = None
    """All elements of the memory in its order, flat; if given, the pieces say nothing."""

    def __post_init__(self) -> None:
        self.pieces = [(whole(self.shape), UNWRITTEN)]

    @property
    def count(self) -> int:
        return volume(whole(self.shape))

    def fill(self, known: Known) -> None:
        """All elements anew."""
        self.pieces, self.values = [(whole(self.shape), known)], None

    def write(self, box: Box, known: Known) -> None:
        self.change(box, lambda _: known)

    def change(self, box: Box, function: Callable[[Known], Known]) -> None:
        """Replace the laws inside the box by a function of them."""
        kept: list[tuple[Box, Known]] = []
        for place, known in self.pieces:
            common = meet(place, box)
            if common is None:
                _append(kept, place, known)
                continue
            _append(kept, common, function(known))
            for rest in without(place, common):
                _append(kept, rest, known)
        self.pieces = kept
        if len(kept) > MANY_PIECES:
            self.fill(Unknown(f"written in more than {MANY_PIECES} separate pieces"))

    def scatter(self, box: Box | None, share: float, known: Known) -> None:
        """Write a share of the elements of the box (None: of all), it is not known which."""
        if box is None and len(self.pieces) > 1:
            self.fill(Unknown("written in a pattern that is not followed"))
            return
        self.change(box or whole(self.shape), lambda before: _diluted(before, share, known))

    def read(self, box: Box | None) -> Known:
        """The law inside a box; of everything, where only that is known to be alike."""
        if box is None and len(self.pieces) > 1:
            return Unknown("read in a pattern that is not followed")
        found = [(meet(place, box) if box else place, known) for place, known in self.pieces]
        inside = [(place, known) for place, known in found if place is not None]
        total = sum(volume(place) for place, _ in inside)
        if len(inside) == 1 or not total:
            return inside[0][1] if inside else UNWRITTEN
        return _mixed([(volume(place) / total, known) for place, known in inside])

    def sources(self) -> list[Source]:
        """The draws behind the elements, each once."""
        found = [known.source.root for _, known in self.pieces if known.source is not None]
        return list(dict.fromkeys(found))


def _append(pieces: list[tuple[Box, Known]], box: Box, known: Known) -> None:
    """Add a piece; beside its like it becomes one with it, so that a loop over columns leaves two pieces."""
    for at, (place, law) in enumerate(pieces):
        both = (joined(place, box) or joined(box, place)) if _alike(law, known) else None
        if both is not None:
            pieces[at] = (both, known)
            return
    pieces.append((box, known))


def _alike(a: Known, b: Known) -> bool:
    if a is b:
        return True
    if isinstance(a, Unknown) or isinstance(b, Unknown):
        return isinstance(a, Unknown) and isinstance(b, Unknown) and a.why == b.why
    return (a.mean, a.ms, a.how, a.mixed) == (b.mean, b.ms, b.how, b.mixed) and a.source is b.source


def _mixed(parts: Sequence[tuple[float, Known]]) -> Known:
    unknown = next((known for _, known in parts if isinstance(known, Unknown)), None)
    if unknown is not None:
        return Unknown(f"in part {unknown.why}", unknown.source)
    return mixture([(share, known) for share, known in parts if isinstance(known, Law)])


def _diluted(before: Known, share: float, known: Known) -> Known:
    """Twice diluted is not followed: the second time may hit what the first one wrote."""
    if share >= 1:
        return known
    if isinstance(before, Law) and before.mixed:
        return Unknown("written in a pattern that is not followed", before.source)
    return _mixed([(1 - share, before), (share, known)])


# Memory without memory: for each storage of a fake tensor, what its elements would be.
#
# Everything is kept by storage, so that views, `.data`, detached tensors and parameters made of a tensor are one.

LARGEST = 2**22  # elements; ours: tables of positions and masks are smaller, weights of large models are not
BUDGET = (
    2**27
)  # bytes of numbers kept at a time; ours: an eighth of the gigabyte that a whole prediction may take
SWEEP = 20_000  # storages between two looks for dead ones; ours


class Memory:
    """Contents by storage, while the storage lives."""

    def __init__(self) -> None:
        self._cells: dict[int, tuple[StorageWeakRef, Contents]] = {}
        self._held = 0
        self._sweep_at = SWEEP

    def allocate(self, tensor: Tensor) -> Contents:
        """A fresh tensor: contents of its own, not yet written."""
        storage = tensor.untyped_storage()
        contents = Contents(tuple(tensor.shape), tuple(tensor.stride()))
        self._cells[storage._cdata] = (StorageWeakRef(storage), contents)  # type: ignore[no-untyped-call]
        if len(self._cells) > self._sweep_at:
            self._sweep()
        return contents

    def find(self, tensor: Tensor) -> Contents | None:
        cell = self._cells.get(tensor.untyped_storage()._cdata)
        gone = cell is None or cell[0].expired()  # type: ignore[no-untyped-call]
        return None if cell is None or gone else cell[1]

    def law(self, tensor: Tensor) -> Known:
        """The law of the elements of a tensor, or why there is none."""
        contents = self.find(tensor)
        if contents is None:
            return Unknown("made by an op that is not followed")
        if contents.values is not None:
            with real():
                return of_values(_view(contents.values, tensor), "values")
        if tensor.numel() == contents.count:
            return contents.read(whole(contents.shape))
        return contents.read(self._box(contents, tensor))

    def pieces(self, tensor: Tensor) -> list[tuple[Box, Known]] | None:
        """The laws of a tensor box by box, if it is the whole of its memory; else None."""
        contents = self.find(tensor)
        if contents is None or contents.values is not None or not _is_whole(contents, tensor):
            return None
        return contents.pieces

    def sources(self, tensor: Tensor) -> list[Source]:
        contents = self.find(tensor)
        return [] if contents is None else contents.sources()

    def values(self, tensor: Tensor) -> Tensor | None:
        """The elements themselves, if they are known and few; made up now if all that is known is one constant."""
        contents = self.find(tensor)
        if contents is None:
            return None
        if contents.values is None and not self._materialise(contents, tensor):
            return None
        assert contents.values is not None
        return _view(contents.values, tensor)

    def write(self, tensor: Tensor, known: Known) -> None:
        contents = self.find(tensor) or self.allocate(tensor)
        if tensor.numel() == contents.count:
            self._release(contents)
            contents.fill(known)
            return
        if self._write_values(contents, tensor, known):
            return
        box = self._box(contents, tensor)
        if box is None:
            contents.scatter(None, tensor.numel() / contents.count, known)
        else:
            contents.write(box, known)

    def write_pieces(self, tensor: Tensor, pieces: list[tuple[Box, Known]]) -> None:
        """A copy of another tensor of the same shape and strides."""
        contents = self.find(tensor) or self.allocate(tensor)
        self._release(contents)
        contents.pieces = list(pieces)

    def scatter(self, tensor: Tensor, share: float, known: Known) -> None:
        """Write a share of the elements of a tensor, it is not known which."""
        contents = self.find(tensor) or self.allocate(tensor)
        self._forget_values(contents)
        contents.scatter(self._box(contents, tensor), share, known)

    def write_values(self, tensor: Tensor, values: Tensor) -> bool:
        """Keep the numbers of a fresh tensor; False if they are too many."""
        size = values.numel() * values.element_size()
        if values.numel() > LARGEST or self._held + size > BUDGET:
            return False
        contents = self.find(tensor) or self.allocate(tensor)
        if not _is_whole(contents, tensor):
            return False
        self._release(contents)
        flat = torch.empty(contents.count, dtype=values.dtype)
        flat.as_strided(tensor.shape, tensor.stride(), 0).copy_(values)
        contents.values = flat
        self._held += size
        return True

    def _write_values(self, contents: Contents, tensor: Tensor, known: Known) -> bool:
        """A constant written into a part of numbers that are known leaves them known."""
        if contents.values is None:
            return False
        if isinstance(known, Law) and known.is_constant:
            with real():
                _view(contents.values, tensor).fill_(known.mean)
            return True
        self._forget_values(contents)
        return False

    def _forget_values(self, contents: Contents) -> None:
        """From numbers to their law: what follows is random."""
        if contents.values is not None:
            with real():
                law = of_values(contents.values, "values")
            self._release(contents)
            contents.fill(replace(law, mixed=True))

    def _materialise(self, contents: Contents, tensor: Tensor) -> bool:
        laws = [known for _, known in contents.pieces]
        size = contents.count * tensor.element_size()
        if not all(isinstance(law, Law) and law.is_constant for law in laws):
            return False
        if contents.count > LARGEST or self._held + size > BUDGET:
            return False
        with real():
            flat = torch.empty(contents.count, dtype=tensor.dtype)
            whole_tensor = flat.as_strided(contents.shape, contents.strides, 0)
            for box, law in contents.pieces:
                whole_tensor[tuple(slice(*part) for part in box)] = (
                    law.mean if isinstance(law, Law) else math.nan
                )
        contents.values = flat
        self._held += size
        return True

    def _box(self, contents: Contents, tensor: Tensor) -> Box | None:
        if tensor.numel() == contents.count:
            return whole(contents.shape)
        size, steps, offset = tuple(tensor.shape), tuple(tensor.stride()), int(tensor.storage_offset())
        return box_of_view(contents.shape, contents.strides, size, steps, offset)

    def _release(self, contents: Contents) -> None:
        if contents.values is not None:
            self._held -= contents.values.numel() * contents.values.element_size()
            contents.values = None

    def _sweep(self) -> None:
        for key, (reference, contents) in list(self._cells.items()):
            if reference.expired():  # type: ignore[no-untyped-call]
                self._release(contents)
                del self._cells[key]
        self._sweep_at = len(self._cells) + SWEEP


@real()
def _view(flat: Tensor, like: Tensor) -> Tensor:
    return flat.as_strided(like.shape, like.stride(), like.storage_offset())


def _is_whole(contents: Contents, tensor: Tensor) -> bool:
    same = contents.shape == tuple(tensor.shape) and contents.strides == tuple(tensor.stride())
    return same and tensor.storage_offset() == 0
