"""A linear warm-up of the learning rate, made by hooks of the optimiser's step."""

from __future__ import annotations

from collections.abc import Iterator

from leadline.fixes.edits import Action, Bench, optimizer_of, whole
from leadline.nn.stepping import DONE, FULL, warm_up
from leadline.records import Edit


def _make(bench: Bench, edit: Edit) -> None:
    optimizer = optimizer_of(bench, "learning rate")
    for handle in warm_up(optimizer, whole(edit, "steps")):
        bench.attach(handle)
    bench.later(lambda: [group.pop(key, None) for group in optimizer.param_groups for key in (DONE, FULL)])


def _code(edit: Edit) -> Iterator[str]:
    yield f"warm_up(optimizer, {whole(edit, 'steps')})"


slow_start = Action(
    name="warm-up", make=_make, code=_code, before=("from leadline.nn.stepping import warm_up",)
)
