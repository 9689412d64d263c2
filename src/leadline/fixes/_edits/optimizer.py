"""Edits of the optimizer: weight decay, clipping, learning rate and warm-up."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from leadline.fixes._engine.edits import Action, Bench, names, number, optimizer_of, text, whole
from leadline.nn.schedules import DONE, FULL, AdaptiveClip, Clip, warm_up
from leadline.records import Edit


def _make_decay(bench: Bench, edit: Edit) -> None:
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


def _decay_code(edit: Edit) -> Iterator[str]:
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


decay = Action(name="decay", make=_make_decay, code=_decay_code)


# Clip gradients before each step: by their norm, or unit by unit against the weights (AGC).


def _make_clip(bench: Bench, edit: Edit) -> None:
    limit = number(edit, "limit")
    hook = AdaptiveClip(limit) if text(edit, "kind") == "adaptive" else Clip(limit)
    bench.attach(optimizer_of(bench, "gradients").register_step_pre_hook(hook))


def _clip_code(edit: Edit) -> Iterator[str]:
    kind = "AdaptiveClip" if text(edit, "kind") == "adaptive" else "Clip"
    yield f"optimizer.register_step_pre_hook({kind}({number(edit, 'limit')!r}))"


clip = Action(
    name="clip",
    make=_make_clip,
    code=_clip_code,
    before=("from leadline.nn.schedules import AdaptiveClip", "from leadline.nn.schedules import Clip"),
)


# Multiply the learning rate of every group of the optimiser.


def _make_rate(bench: Bench, edit: Edit) -> None:
    factor = number(edit, "factor")
    for group in optimizer_of(bench, "learning rate").param_groups:
        before = group["lr"]
        if isinstance(before, torch.Tensor):
            bench.write(before, before * factor)
        else:
            group["lr"] = before * factor
            bench.later(partial(group.__setitem__, "lr", before))


def _rate_code(edit: Edit) -> Iterator[str]:
    yield "for group in optimizer.param_groups:"
    yield f'    group["lr"] *= {number(edit, "factor")!r}'


rate = Action(name="rate", make=_make_rate, code=_rate_code)


# A linear warm-up of the learning rate, made by hooks of the optimiser's step.


def _make_warm_up(bench: Bench, edit: Edit) -> None:
    optimizer = optimizer_of(bench, "learning rate")
    for handle in warm_up(optimizer, whole(edit, "steps")):
        bench.attach(handle)
    bench.later(lambda: [group.pop(key, None) for group in optimizer.param_groups for key in (DONE, FULL)])


def _warm_up_code(edit: Edit) -> Iterator[str]:
    yield f"warm_up(optimizer, {whole(edit, 'steps')})"


slow_start = Action(
    name="warm-up",
    make=_make_warm_up,
    code=_warm_up_code,
    before=("from leadline.nn.schedules import warm_up",),
)
