"""What one piece of memory holds: laws, each in its own box; or, where that is cheap, the numbers themselves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from leadline.weightless.law import UNWRITTEN, Known, Law, Source, Unknown, mixture
from leadline.weightless.regions import Box, joined, meet, volume, whole, without

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
