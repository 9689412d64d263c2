"""Memory without memory: for each storage of a fake tensor, what its elements would be.

Everything is kept by storage, so that views, `.data`, detached tensors and parameters made of a tensor are one.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from leadline.weightless.contents import Contents
from leadline.weightless.law import Known, Law, Source, Unknown, of_values, real
from leadline.weightless.regions import Box, box_of_view, whole

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
