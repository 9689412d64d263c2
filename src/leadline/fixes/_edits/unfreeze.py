"""Make frozen parameters trainable, and give them to the optimizer."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from leadline.fixes._engine.edits import Action, EditSession, names
from leadline.joint_optimizer import member_of
from leadline.records import Edit


def _apply(session: EditSession, edit: Edit) -> None:
    parameters = [session.model.get_parameter(name) for name in names(edit, "names")]
    for parameter in parameters:
        session.add_undo(partial(parameter.requires_grad_, parameter.requires_grad))
        parameter.requires_grad = True
    if session.optimizer is None:
        return
    known = {id(p) for group in session.optimizer.param_groups for p in group["params"]}
    for parameter in parameters:
        if id(parameter) not in known:
            params = member_of(session.optimizer, [parameter]).param_groups[0]["params"]
            session.add_undo(partial(params.__delitem__, slice(len(params), None)))
            params.append(parameter)


def _code(edit: Edit) -> Iterator[str]:
    yield f"thawed = [model.get_parameter(name).requires_grad_(True) for name in {list(names(edit, 'names'))!r}]"
    yield 'known = {id(p) for group in optimizer.param_groups for p in group["params"]}'
    yield 'optimizer.param_groups[0]["params"].extend(p for p in thawed if id(p) not in known)'


train = Action(name="train", apply=_apply, code=_code)
