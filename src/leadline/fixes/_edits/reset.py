"""Edits of modules that hold no numbers to scale: initialize their parameters anew, or drop fewer units."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch

from leadline.fixes._engine.edits import Action, EditSession, choice, integer, module_at, number, write_tensor
from leadline.records import Edit
from leadline.tracer.initializers import reset_parameters

FUNCTION = '''\
def reset_parameters(model, seed):
    """Initialize every layer as torch does it."""
    torch.manual_seed(seed)
    for module in model.modules():
        reset = getattr(module, "reset_parameters", None) or getattr(module, "_reset_parameters", None)
        if reset is not None:
            reset()'''


def _apply_reset(session: EditSession, edit: Edit) -> None:
    for parameter in session.model.parameters():
        session.add_undo(partial(write_tensor, parameter, parameter.detach().clone()))
    with torch.random.fork_rng():
        reset_parameters(session.model, integer(edit, "seed"))


def _reset_code(edit: Edit) -> Iterator[str]:
    yield f"reset_parameters(model, {integer(edit, 'seed')})"


reset = Action(name="reset", apply=_apply_reset, code=_reset_code, before=("import torch", FUNCTION))


ATTRIBUTES = ("p", "dropout")
"""Where modules of torch keep their rate: dropout layers, and attention or recurrent layers."""


def _apply_dropout(session: EditSession, edit: Edit) -> None:
    session.set_attribute(
        module_at(session, edit), choice(edit, "attribute", ATTRIBUTES), number(edit, "rate")
    )


def _dropout_code(edit: Edit) -> Iterator[str]:
    yield f'model.get_submodule("{edit.where}").{choice(edit, "attribute", ATTRIBUTES)} = {number(edit, "rate")!r}'


dropout = Action(name="dropout", apply=_apply_dropout, code=_dropout_code)
