"""Multiply the learning rate of every group of the optimiser."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch

from leadline.fixes.edits import Action, Bench, number, optimizer_of
from leadline.records import Edit


def _make(bench: Bench, edit: Edit) -> None:
    factor = number(edit, "factor")
    for group in optimizer_of(bench, "learning rate").param_groups:
        before = group["lr"]
        if isinstance(before, torch.Tensor):
            bench.write(before, before * factor)
        else:
            group["lr"] = before * factor
            bench.later(partial(group.__setitem__, "lr", before))


def _code(edit: Edit) -> Iterator[str]:
    yield "for group in optimizer.param_groups:"
    yield f'    group["lr"] *= {number(edit, "factor")!r}'


rate = Action(name="rate", make=_make, code=_code)
