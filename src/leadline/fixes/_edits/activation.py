"""Replace or remove an activation, or scale the result of a call: in a module, or in the calls of its own code."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

from leadline.errors import InputError
from leadline.fixes._engine.edits import Action, EditSession, choice, integer, module_at, number, word
from leadline.nn.activations import ACTIVATIONS
from leadline.nn.hooks import Rerouted, ScaledCall
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


def _apply_scale_call(session: EditSession, edit: Edit) -> None:
    module, place = module_at(session, edit), integer(edit, "place")
    if "forward" in vars(module):
        raise InputError(
            expected=f"a module at {edit.where!r} whose forward is that of its class",
            got="one with a forward of its own",
            fix="apply the recipe to a model built by the same code",
        )
    scaled = ScaledCall(module, word(edit, "calls"), place, number(edit, "factor"))
    session.set_attribute(module, "forward", scaled)


def _scale_call_code(edit: Edit) -> Iterator[str]:
    owner = f'model.get_submodule("{edit.where}")' if edit.where else "model"
    calls, place, factor = word(edit, "calls"), integer(edit, "place"), number(edit, "factor")
    yield f'{owner}.forward = ScaledCall({owner}, "{calls}", {place}, {factor!r})'


scale_call = Action(
    name="scale-call",
    apply=_apply_scale_call,
    code=_scale_call_code,
    before=("from leadline.nn.hooks import ScaledCall",),
)
