"""Edits of the optimizer: weight decay, gradient clipping, learning rate, other options, warm-up, and its kind."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from leadline.errors import InputError
from leadline.fixes._engine.edits import (
    Action,
    EditSession,
    integer,
    names,
    number,
    optimizer_of,
    restore_dict,
    word,
)
from leadline.joint_optimizer import members_of
from leadline.nn.schedules import FULL_LR, WARMED_STEPS, AdaptiveClip, Clip, warm_up
from leadline.records import Edit


def _apply_decay(session: EditSession, edit: Edit) -> None:
    optimizer = optimizer_of(session, "weight decay")
    for group in optimizer.param_groups:
        if group.get("weight_decay"):
            session.add_undo(partial(group.__setitem__, "weight_decay", group["weight_decay"]))
            group["weight_decay"] = min(group["weight_decay"], number(edit, "most"))
    spared = set(names(edit, "spared"))
    if spared:
        known = {
            id(p) for name, p in session.model.named_parameters(remove_duplicate=False) if name in spared
        }
        for member in members_of(optimizer):
            _exempt(session, member.param_groups, known)


def _exempt(session: EditSession, groups: list[dict[str, Any]], known: set[int]) -> None:
    """Move the parameters with the `known` ids into copies of their groups without weight decay."""
    before = [(group["params"], list(group["params"])) for group in groups]
    session.add_undo(partial(_restore_groups, groups, len(groups), before))
    for group in [group for group in groups if group.get("weight_decay")]:
        moved = [p for p in group["params"] if id(p) in known]
        if moved:
            group["params"][:] = [p for p in group["params"] if id(p) not in known]
            groups.append({**group, "params": moved, "weight_decay": 0.0})


def _restore_groups(groups: list[Any], count: int, before: list[tuple[list[Any], list[Any]]]) -> None:
    del groups[count:]
    for params, members in before:
        params[:] = members


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


decay = Action(name="decay", apply=_apply_decay, code=_decay_code)


# Clip gradients before each step: by their norm, or per unit relative to the weights (AGC).


def _apply_clip(session: EditSession, edit: Edit) -> None:
    limit = number(edit, "limit")
    hook = AdaptiveClip(limit) if word(edit, "kind") == "adaptive" else Clip(limit)
    for member in members_of(optimizer_of(session, "gradients")):
        session.add_hook(member.register_step_pre_hook(hook))


def _clip_code(edit: Edit) -> Iterator[str]:
    kind = "AdaptiveClip" if word(edit, "kind") == "adaptive" else "Clip"
    yield f"optimizer.register_step_pre_hook({kind}({number(edit, 'limit')!r}))"


clip = Action(
    name="clip",
    apply=_apply_clip,
    code=_clip_code,
    before=("from leadline.nn.schedules import AdaptiveClip", "from leadline.nn.schedules import Clip"),
)


# Multiply the learning rate of every group.


def _apply_rate(session: EditSession, edit: Edit) -> None:
    factor = number(edit, "factor")
    for group in optimizer_of(session, "learning rate").param_groups:
        before = group["lr"]
        if isinstance(before, torch.Tensor):
            session.write(before, before * factor)
        else:
            group["lr"] = before * factor
            session.add_undo(partial(group.__setitem__, "lr", before))


def _rate_code(edit: Edit) -> Iterator[str]:
    yield "for group in optimizer.param_groups:"
    yield f'    group["lr"] *= {number(edit, "factor")!r}'


rate = Action(name="rate", apply=_apply_rate, code=_rate_code)


# Set options such as momentum, betas and eps in every group that has them.

OPTIONS = ("momentum", "eps")
BETAS = ("beta1", "beta2")


def _chosen_options(edit: Edit) -> dict[str, float | tuple[float, ...]]:
    """The options of the edit; both betas are one option of a group."""
    chosen: dict[str, float | tuple[float, ...]] = {
        name: number(edit, name) for name in OPTIONS if name in edit.options
    }
    if BETAS[0] in edit.options:
        chosen["betas"] = tuple(number(edit, name) for name in BETAS)
    return chosen


def _apply_options(session: EditSession, edit: Edit) -> None:
    for group in optimizer_of(session, "options").param_groups:
        for name, value in _chosen_options(edit).items():
            if name in group:
                session.add_undo(partial(group.__setitem__, name, group[name]))
                group[name] = value


def _options_code(edit: Edit) -> Iterator[str]:
    yield "for group in optimizer.param_groups:"
    for name, value in _chosen_options(edit).items():
        yield f'    group["{name}"] = {value!r}'


options = Action(name="options", apply=_apply_options, code=_options_code)


# Warm the learning rate up linearly, by hooks on the optimizer's step.


def _apply_warm_up(session: EditSession, edit: Edit) -> None:
    optimizer = optimizer_of(session, "learning rate")
    for member in members_of(optimizer):
        for handle in warm_up(member, integer(edit, "steps")):
            session.add_hook(handle)
    session.add_undo(
        lambda: [group.pop(key, None) for group in optimizer.param_groups for key in (WARMED_STEPS, FULL_LR)]
    )


def _warm_up_code(edit: Edit) -> Iterator[str]:
    yield f"warm_up(optimizer, {integer(edit, 'steps')})"


warm_up_steps = Action(
    name="warm-up",
    apply=_apply_warm_up,
    code=_warm_up_code,
    before=("from leadline.nn.schedules import warm_up",),
)


# Make the optimizer a plain Adam. It stays the same object, because the user's loop holds it.


def _apply_adam(session: EditSession, edit: Edit) -> None:
    optimizer = optimizer_of(session, "kind")
    if len(members_of(optimizer)) != 1 or "step" in vars(optimizer):
        raise InputError(
            expected="a single optimizer whose `step` is that of its class",
            got="several that step together, or one whose `step` a scheduler or wrapper has replaced",
            fix="build `torch.optim.Adam` in your code instead",
        )
    parameters = [each for group in optimizer.param_groups for each in group["params"]]
    adam = torch.optim.Adam(parameters, lr=number(edit, "lr"))
    session.add_undo(partial(restore_dict, vars(optimizer), dict(vars(optimizer))))
    session.add_undo(partial(setattr, optimizer, "__class__", type(optimizer)))
    optimizer.__class__ = type(adam)
    optimizer.defaults, optimizer.param_groups, optimizer.state = adam.defaults, adam.param_groups, adam.state


def _adam_code(edit: Edit) -> Iterator[str]:
    yield 'trained = [p for group in optimizer.param_groups for p in group["params"]]'
    yield f"optimizer = torch.optim.Adam(trained, lr={number(edit, 'lr')!r})"


adam = Action(name="adam", apply=_apply_adam, code=_adam_code, before=("import torch",))
