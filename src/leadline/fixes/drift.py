"""Did a fix that claims to keep the function keep it? Asked of two copies in double precision."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from leadline.case import Case
from leadline.fixes.copying import twin
from leadline.fixes.edits import Bench, make
from leadline.records import Edit
from leadline.symmetry.confirm import relative_change
from leadline.tracing import lend
from leadline.tracing.custody import process_state_kept
from leadline.updating.borrowed import fresh, outputs_of

KEPT = 1e-9  # derived: double precision through thousands of ops leaves 1e-12; rounding a factor once, 1e-16


def drift_of(case: Case, edits: Sequence[Edit]) -> float:
    """The largest relative change of the outputs, in the root of the mean square, that the edits make.

    Edits are made on a copy that is in double precision already: rounding of the weights themselves is not counted.
    """
    before, after = (_outputs(case, made) for made in ((), edits))
    if len(before) != len(after) or any(a.shape != b.shape for a, b in zip(before, after, strict=True)):
        return float("inf")
    return relative_change(before, after)


def _outputs(case: Case, edits: Sequence[Edit]) -> list[Tensor]:
    exact = twin(case)
    exact.model.double()
    make(Bench(model=exact.model, optimizer=exact.optimizer), edits)
    with process_state_kept(), torch.no_grad():
        torch.manual_seed(0)
        output = lend.call(exact.model, fresh(_double(case.inputs)))
    return [each.detach() for each in outputs_of(output)]


def _double(batch: Any) -> Any:
    return tree_map_only(Tensor, lambda each: each.double() if each.is_floating_point() else each, batch)
