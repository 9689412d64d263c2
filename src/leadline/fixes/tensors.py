"""Writing a weight where it really lives: a plain parameter, or the originals behind a parametrised one."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from leadline.errors import InputError
from leadline.fixes.edits import Bench, _refill, _write, parameter_at
from leadline.records import Edit


def write_at(bench: Bench, edit: Edit, values: Tensor) -> None:
    """`values` for the weight that the edit names: through the parametrisation if it has one."""
    owner, name = owner_of(bench.model, edit.where)
    if owner is None or not parametrize.is_parametrized(owner, name):
        bench.write(parameter_at(bench, edit), values)
        return
    _remember(bench, owner.parametrizations[name])  # type: ignore[index, arg-type]
    try:
        with torch.no_grad():
            setattr(owner, name, values)
    except (RuntimeError, NotImplementedError, AttributeError) as error:
        raise InputError(
            expected=f"a parametrisation of {edit.where!r} that can be given a weight (`right_inverse`)",
            got=str(error).splitlines()[0],
            fix="initialise the originals of that parametrisation in your own code",
        ) from None


def _remember(bench: Bench, parametrization: nn.Module) -> None:
    """Originals are written in place; buffers (the base of `orthogonal`) may be replaced as well."""
    for each in (*parametrization.parameters(), *parametrization.buffers()):
        bench.later(partial(_write, each, each.detach().clone()))
    for part in parametrization.modules():
        bench.later(partial(_refill, part._buffers, dict(part._buffers)))


def owner_of(model: nn.Module, where: str) -> tuple[nn.Module | None, str]:
    """The module that a dotted name belongs to, None if there is none, and the last part of the name."""
    path, _, name = where.rpartition(".")
    try:
        return model.get_submodule(path), name
    except AttributeError:
        return None, name
