"""Replace or remove an activation: a module, or the calls that a module's own code makes."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

from leadline.errors import InputError
from leadline.fixes._engine.edits import Action, EditSession, choice, module_at, word
from leadline.nn.activations import ACTIVATIONS
from leadline.nn.hooks import Rerouted
from leadline.records import Edit

MODULES = {
    "identity": "Identity",
    "relu": "ReLU",
    "gelu": "GELU",
    "silu": "SiLU",
    "tanh": "Tanh",
    "elu": "ELU",
    "selu": "SELU",
}


def _apply_swap(session: EditSession, edit: Edit) -> None:
    module, name = module_at(session, edit), choice(edit, "to", MODULES)
    if module is session.model:
        raise InputError(
            expected="an activation inside a model",
            got="the model itself",
            fix="replace it where it is used",
        )
    session.replace_module(module, getattr(nn, MODULES[name])().train(module.training))


def _swap_code(edit: Edit) -> Iterator[str]:
    path, _, name = edit.where.rpartition(".")
    yield f'setattr(model.get_submodule("{path}"), "{name}", torch.nn.{MODULES[choice(edit, "to", MODULES)]}())'


def _apply_reroute(session: EditSession, edit: Edit) -> None:
    module = module_at(session, edit)
    rerouted = Rerouted(module, word(edit, "calls"), _replacement(edit), module.forward)
    session.set_attribute(module, "forward", rerouted)


def _reroute_code(edit: Edit) -> Iterator[str]:
    owner = f'model.get_submodule("{edit.where}")' if edit.where else "model"
    calls, replacement = word(edit, "calls"), _replacement(edit)
    yield f'{owner}.forward = Rerouted({owner}, "{calls}", "{replacement}", {owner}.forward)'


def _replacement(edit: Edit) -> str:
    return choice(edit, "to", {"identity", *ACTIVATIONS})


swap = Action(name="swap", apply=_apply_swap, code=_swap_code, before=("import torch",))
reroute = Action(
    name="reroute",
    apply=_apply_reroute,
    code=_reroute_code,
    before=("from leadline.nn.hooks import Rerouted",),
)
