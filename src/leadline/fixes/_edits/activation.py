"""Another activation for a module, or for the calls that a module's own code makes; or none."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

from leadline.errors import InputError
from leadline.fixes._engine.edits import Action, Bench, choice, module_at, text
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


def _swap(bench: Bench, edit: Edit) -> None:
    module, name = module_at(bench, edit), choice(edit, "to", MODULES)
    if module is bench.model:
        raise InputError(
            expected="an activation inside of a model",
            got="the model itself",
            fix="replace it where it is used",
        )
    bench.put_everywhere(module, getattr(nn, MODULES[name])().train(module.training))


def _swap_code(edit: Edit) -> Iterator[str]:
    path, _, name = edit.where.rpartition(".")
    yield f'setattr(model.get_submodule("{path}"), "{name}", torch.nn.{MODULES[choice(edit, "to", MODULES)]}())'


def _reroute(bench: Bench, edit: Edit) -> None:
    module = module_at(bench, edit)
    bench.put(module, "forward", Rerouted(module, text(edit, "calls"), _target(edit), module.forward))


def _target(edit: Edit) -> str:
    return choice(edit, "to", {"identity", *ACTIVATIONS})


def _reroute_code(edit: Edit) -> Iterator[str]:
    owner = f'model.get_submodule("{edit.where}")' if edit.where else "model"
    yield f'{owner}.forward = Rerouted({owner}, "{text(edit, "calls")}", "{_target(edit)}", {owner}.forward)'


swap = Action(name="swap", make=_swap, code=_swap_code, before=("import torch",))
reroute = Action(
    name="reroute", make=_reroute, code=_reroute_code, before=("from leadline.nn.hooks import Rerouted",)
)
