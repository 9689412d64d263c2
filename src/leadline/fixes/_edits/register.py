"""Put modules that a list or dict hides into a container that registers them."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

from leadline.errors import InputError
from leadline.fixes._engine.edits import Action, EditSession, choice, module_at, word
from leadline.joint_optimizer import member_of
from leadline.records import Edit

KINDS = ("ModuleList", "ModuleDict")


def _apply(session: EditSession, edit: Edit) -> None:
    owner, name = module_at(session, edit), word(edit, "name")
    hidden = vars(owner).get(name)
    items = list(hidden.values()) if isinstance(hidden, dict) else hidden
    if not isinstance(items, list | tuple) or not all(isinstance(each, nn.Module) for each in items):
        raise InputError(
            expected=f"a list or dict of modules as {edit.where}.{name}",
            got=type(hidden).__qualname__,
            fix="apply the recipe to a model built by the same code",
        )
    container = nn.ModuleDict(hidden) if isinstance(hidden, dict) else nn.ModuleList(items)
    session.set_attribute(owner, name, container)
    if session.optimizer is None:
        return
    known = {id(each) for group in session.optimizer.param_groups for each in group["params"]}
    for parameter in container.parameters():
        if id(parameter) not in known:
            params = member_of(session.optimizer, [parameter]).param_groups[0]["params"]
            length = len(params)
            session.add_undo(lambda params=params, length=length: params.__delitem__(slice(length, None)))  # type: ignore[misc]
            params.append(parameter)


def _code(edit: Edit) -> Iterator[str]:
    owner, name = f'model.get_submodule("{edit.where}")' if edit.where else "model", word(edit, "name")
    yield f"{owner}.{name} = torch.nn.{choice(edit, 'kind', KINDS)}({owner}.{name})"
    yield 'known = {id(p) for group in optimizer.param_groups for p in group["params"]}'
    yield f"new = [p for p in {owner}.{name}.parameters() if id(p) not in known]"
    yield 'optimizer.param_groups[0]["params"].extend(new)'


register = Action(name="register", apply=_apply, code=_code, before=("import torch",))
