"""Set the weight decay of the optimiser's groups, and spare some parameters from it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from leadline.fixes.edits import Action, Bench, names, number, optimizer_of
from leadline.records import Edit


def _make(bench: Bench, edit: Edit) -> None:
    optimizer = optimizer_of(bench, "weight decay")
    for group in optimizer.param_groups:
        if group.get("weight_decay"):
            bench.later(partial(group.__setitem__, "weight_decay", group["weight_decay"]))
            group["weight_decay"] = min(group["weight_decay"], number(edit, "most"))
    spared = set(names(edit, "spared"))
    if spared:
        known = {id(p) for name, p in bench.model.named_parameters(remove_duplicate=False) if name in spared}
        _spare(bench, optimizer.param_groups, known)


def _spare(bench: Bench, groups: list[dict[str, Any]], known: set[int]) -> None:
    """Move these parameters from groups that decay into groups that are the same but for that."""
    before = [(group["params"], list(group["params"])) for group in groups]
    bench.later(partial(_regroup, groups, len(groups), before))
    for group in [group for group in groups if group.get("weight_decay")]:
        moved = [p for p in group["params"] if id(p) in known]
        if moved:
            group["params"][:] = [p for p in group["params"] if id(p) not in known]
            groups.append({**group, "params": moved, "weight_decay": 0.0})


def _regroup(groups: list[Any], count: int, before: list[tuple[list[Any], list[Any]]]) -> None:
    del groups[count:]
    for params, kept in before:
        params[:] = kept


def _code(edit: Edit) -> Iterator[str]:
    yield "for group in optimizer.param_groups:"
    yield f'    group["weight_decay"] = min(group["weight_decay"], {number(edit, "most")!r})'
    spared = names(edit, "spared")
    if spared:
        yield f"spared = {{id(model.get_parameter(name)) for name in {list(spared)!r}}}"
        yield 'for group in [group for group in optimizer.param_groups if group["weight_decay"]]:'
        yield '    moved = [p for p in group["params"] if id(p) in spared]'
        yield "    if moved:"
        yield '        group["params"][:] = [p for p in group["params"] if id(p) not in spared]'
        yield '        optimizer.param_groups.append({**group, "params": moved, "weight_decay": 0.0})'


decay = Action(name="decay", make=_make, code=_code)
