"""The batches of a trial: read once from what the user gave, kept, and the same for every model that is trained."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from leadline.case import Case, Inputs, describe
from leadline.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class Batches:
    """At least one batch. Its tensors are the user's own: copy them before a model may write into them."""

    each: tuple[tuple[Inputs, Any], ...]

    def fresh(self, steps: int) -> bool:
        """Every step sees another batch."""
        return len(self.each) >= steps

    def schedule(self, steps: int, seed: int) -> list[tuple[Inputs, Any]]:
        """A batch for each step: in the order in which they came for seed 0, in another for any other seed."""
        count = len(self.each)
        order = list(range(count))
        if seed:
            order = torch.randperm(count, generator=torch.Generator().manual_seed(seed)).tolist()
        return [self.each[order[step % count]] for step in range(steps)]


def read_batches(case: Case, most: int) -> Batches:
    """At most `most` of the case's batches; the one it is judged with if it has no others.

    An iterator (a generator, say) is read ahead and cannot be put back: give a list or a DataLoader to keep it.
    """
    if case.batches is None:
        return Batches(each=((case.inputs, case.targets),))
    found = tuple(_batch(item, case) for item in islice(iter(case.batches), most))
    if not found:
        raise InputError(
            expected="at least one batch in `batches`",
            got=f"{describe(case.batches)} that gives none",
            fix="pass a list or DataLoader of (inputs, targets), or leave it out",
        )
    return Batches(each=found)


def with_batch(case: Case, batch: tuple[Inputs, Any]) -> Case:
    return replace(case, inputs=batch[0], targets=batch[1], batches=None)


def _batch(item: Any, case: Case) -> tuple[Inputs, Any]:
    """Inputs and targets of a batch as loaders give them: a pair, or inputs alone where the case has no targets."""
    if isinstance(item, list | tuple) and len(item) == 2 and not _is_inputs(item, case):
        return _inputs(item[0]), item[1]
    if case.targets is None and (isinstance(item, Tensor | Mapping) or _is_inputs(item, case)):
        return _inputs(item), None
    if case.targets is None and isinstance(item, list | tuple) and len(item) == 1:
        return _inputs(item[0]), None
    raise InputError(
        expected="batches as pairs of (inputs, targets), or as inputs alone for a case without targets",
        got=describe(item),
        fix="wrap the loader: batches=[(inputs, targets) for ... in loader]",
    )


def _is_inputs(item: Any, case: Case) -> bool:
    """It looks like the case's own positional arguments, and the case has no targets that could be its second half."""
    alike = isinstance(case.inputs, tuple) and isinstance(item, list | tuple)
    return case.targets is None and alike and len(item) == len(case.inputs)


def _inputs(item: Any) -> Inputs:
    found: Inputs = tuple(item) if isinstance(item, list) else item
    return found
