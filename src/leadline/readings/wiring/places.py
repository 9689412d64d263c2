"""Where in a pass a change of the inputs first reached an index that it must not reach.

Two passes are compared op by op, by the fingerprints of their outputs. The search goes backward from what the model
returned: a change that is undone on the way, or an axis that has the length of the batch by coincidence, is no cause.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Literal

import torch
from torch import Tensor

from leadline.ops.table import LAYOUT_KINDS, find_op
from leadline.records.wiring import OpSite
from leadline.tracer.passes import OpPrint

ChangeState = Literal["same", "apart", "mixed", "unclear"]
"""What a change did to one op's output.

`same`: nothing; `apart`: only allowed indices differ; `mixed`: others differ, too; `unclear`: it differs and has no
axis to tell.
"""


class PassComparison:
    """Two passes, compared along axes of one length while they make the same calls. `allowed` indices may differ.

    An axis may also hold samples and positions, or samples and heads, as one: it is taken apart again, either way.
    """

    def __init__(
        self,
        base: Sequence[OpPrint],
        other: Sequence[OpPrint],
        roots: Sequence[int],
        length: int,
        allowed: Collection[int],
    ) -> None:
        """`roots` are the places in `base` of the ops that made the outputs."""
        self._base, self._other, self._roots = base, other, roots
        self._length, self._allowed = length, allowed
        self._states: dict[int, ChangeState] = {}
        pairs = zip(base, other, strict=False)
        differing = (index for index, (one, two) in enumerate(pairs) if not _is_same_call(one, two))
        self._compared = next(differing, min(len(base), len(other)))

    def find_cause(self) -> OpSite | None:
        """The first op behind the outputs whose own output is mixed although none of its inputs is.

        Without a mixed output of the model, it is the first op of the pass whose output is mixed.
        """
        mixed = [root for root in self._roots if root < self._compared and self.state(root) == "mixed"]
        if not mixed:
            mixed = [index for index in range(self._compared) if self.state(index) == "mixed"][:1]
        return min(self._causes(mixed), default=(0, None))[1] if mixed else None

    def _causes(self, roots: Sequence[int]) -> Iterator[tuple[int, OpSite]]:
        readers: dict[int, int] = dict.fromkeys(roots, -1)
        pending = list(roots)
        while pending:
            index = pending.pop()
            makers = [
                maker for maker in self._base[index].makers if self.state(maker) in ("mixed", "unclear")
            ]
            if not makers:
                cause = self._past_layout(index, readers)
                yield cause, self._base[cause].site
            for maker in makers:
                if maker not in readers:
                    readers[maker] = index
                    pending.append(maker)

    def _past_layout(self, index: int, readers: dict[int, int]) -> int:
        """The op, or its reader if it only moves elements and nobody can tell whether it moved them wrongly."""
        while self.state(index) == "unclear" and _is_layout(self._base[index].name) and readers[index] >= 0:
            index = readers[index]
        return index

    def find_transfer(self) -> tuple[OpSite, list[bool]] | None:
        """The first op behind the outputs that mixes samples before a layer, moves elements or runs over them.

        A loss may compare samples, and a mean may go over them; nobody does so before a layer, moves elements between
        samples, or runs a recurrent layer along them, on purpose. Returns its place and whether each index changed.
        """
        behind, pending = set(self._roots), list(self._roots)
        while pending:
            makers = {*self._base[pending.pop()].makers} - behind
            behind |= makers
            pending += makers
        inside = self._before_weights(behind)
        for index in sorted(behind):
            is_judged = index in inside or _moves_elements(self._base[index].name)
            if index >= self._compared or not is_judged:
                continue
            changed = [each for each in self._base[index].makers if self.state(each) != "same"]
            lost = [each for each in changed if not self._has_samples(each)] if index in inside else []
            if self.state(index) == "mixed" and all(each in lost or self._is_apart(each) for each in changed):
                before, after = self._axes(index)[0]
                if len(before) == self._length:
                    return self._base[(*lost, index)[0]].site, (before != after).tolist()
        return None

    def _before_weights(self, behind: Collection[int]) -> set[int]:
        """The ops whose result goes into a layer: they belong to the network, not to a loss that compares samples."""
        pending = [index for index in behind if _is_weight(self._base[index].name)]
        inside = set[int]()
        while pending:
            makers = {*self._base[pending.pop()].makers} - inside
            inside |= makers
            pending += makers
        return inside

    def _has_samples(self, index: int) -> bool:
        """Whether an output has an axis of exactly the length."""
        return any(len(each) == self._length for each in self._base[index].axes)

    def _is_apart(self, index: int) -> bool:
        """Whether an output has an axis of exactly the length, along which nothing is mixed."""
        axes = self._axes(index)
        return self.state(index) == "apart" and any(len(each[0]) == self._length for each in axes)

    def reaches(self, index: int) -> bool:
        """Whether some op behind the outputs has an output with one axis of the length that differs at this index."""
        seen, pending = set(self._roots), list(self._roots)
        while pending:
            place = pending.pop()
            if place >= self._compared:
                continue
            axes = self._axes(place)
            if (
                len(axes) == 1
                and len(axes[0][0]) == self._length
                and bool(axes[0][0][index] != axes[0][1][index])
            ):
                return True
            makers = {*self._base[place].makers} - seen
            seen |= makers
            pending += makers
        return False

    def state(self, index: int) -> ChangeState:
        """What the change did to the output of this op; each one is compared once."""
        if index not in self._states:
            self._states[index] = self._compare(index)
        return self._states[index]

    def _compare(self, index: int) -> ChangeState:
        pairs = list(zip(self._base[index].axes, self._other[index].axes, strict=True))
        if all(torch.equal(before, after) for before, after in pairs):
            return "same"
        axes = self._axes(index)
        if not axes:
            return "unclear"
        return "mixed" if all(self._is_mixed(*pair) for pair in axes) else "apart"

    def _axes(self, index: int) -> list[tuple[Tensor, Tensor]]:
        """The axes of the length in both passes; if there are none, those that can be taken apart into it."""
        pairs = list(zip(self._base[index].axes, self._other[index].axes, strict=True))
        exact = [pair for pair in pairs if len(pair[0]) == len(pair[1]) == self._length]
        return exact or [
            pair for pair in pairs if len(pair[0]) == len(pair[1]) and self._is_multiple(pair[0])
        ]

    def _is_multiple(self, axis: Tensor) -> bool:
        return len(axis) > self._length and len(axis) % self._length == 0

    def _is_mixed(self, before: Tensor, after: Tensor) -> bool:
        changed = (before != after).nonzero().flatten().tolist()
        inner = len(before) // self._length
        is_apart = all(index // inner in self._allowed for index in changed) or all(
            index % self._length in self._allowed for index in changed
        )
        return not is_apart


def _is_same_call(one: OpPrint, two: OpPrint) -> bool:
    return one.name == two.name and len(one.axes) == len(two.axes)


def _moves_elements(name: str) -> bool:
    row = find_op(name)
    return row is not None and (row.kind in LAYOUT_KINDS or row.kind == "recurrent")


def _is_weight(name: str) -> bool:
    row = find_op(name)
    return row is not None and row.kind == "weight"


def _is_layout(name: str) -> bool:
    row = find_op(name)
    return row is not None and row.kind in LAYOUT_KINDS
