"""Draw a parameter anew from a generator seeded by its name, or fill it with one number."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from zlib import crc32

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from leadline.errors import InputError
from leadline.fixes._engine.edits import (
    Action,
    EditSession,
    choice,
    integer,
    number,
    parameter_at,
    restore_dict,
    write_tensor,
)
from leadline.records import Edit

KINDS = ("normal", "orthogonal", "identity", "constant")
"""How a tensor is filled; `size` is the standard deviation, the gain, the diagonal, or the constant."""
FUNCTION = '''\
def draw(model, name, fill, *size, parts=1):
    """Draw a weight anew. Its name is the seed: the numbers are the same in every run, on every device."""
    values = torch.empty(model.get_parameter(name).shape, dtype=torch.float32, device="cpu")
    generator = torch.Generator().manual_seed(crc32(name.encode()))
    for part in values.chunk(parts):
        fill(part, *size, generator=generator)
    model.get_parameter(name).data.copy_(values)'''


def seeded_generator(name: str) -> torch.Generator:
    """A generator seeded by a name: no two layers draw the same numbers, and a recipe replays bit for bit."""
    return torch.Generator().manual_seed(crc32(name.encode()))


def _apply(session: EditSession, edit: Edit) -> None:
    owner, name = _owner_of(session.model, edit.where)
    value = getattr(owner, name, None)
    weight = value if isinstance(value, Tensor) else parameter_at(session, edit)
    _write(session, edit, _draw(weight.shape, edit).to(weight))


def _draw(shape: torch.Size, edit: Edit) -> Tensor:
    """New values in float32 on the CPU for any dtype and device: the same seed gives the same numbers."""
    kind, size = choice(edit, "kind", KINDS), number(edit, "size")
    generator = seeded_generator(edit.where)
    values = torch.empty(shape, dtype=torch.float32, device="cpu")
    for part in values.chunk(_parts(edit)):
        _fill(part, kind, size, generator)
    return values


def _parts(edit: Edit) -> int:
    return integer(edit, "packed") if "packed" in edit.options else 1


def _fill(part: Tensor, kind: str, size: float, generator: torch.Generator) -> None:
    if kind == "normal":
        torch.nn.init.normal_(part, 0.0, size, generator=generator)
    elif kind == "orthogonal":
        torch.nn.init.orthogonal_(part, size, generator=generator)
    elif kind == "identity":
        torch.nn.init.eye_(part).mul_(size)
    else:
        torch.nn.init.constant_(part, size)


def _write(session: EditSession, edit: Edit, values: Tensor) -> None:
    """Write the values into the edit's weight, through its parametrization if it has one."""
    owner, name = _owner_of(session.model, edit.where)
    if owner is None or not parametrize.is_parametrized(owner, name):
        session.write(parameter_at(session, edit), values)
        return
    _remember(session, owner.parametrizations[name])  # type: ignore[index, arg-type]
    try:
        with torch.no_grad():
            setattr(owner, name, values)
    except (RuntimeError, NotImplementedError, AttributeError) as error:
        raise InputError(
            expected=f"a parametrization of {edit.where!r} that accepts a weight (`right_inverse`)",
            got=str(error).splitlines()[0],
            fix="initialize the originals of that parametrization in your own code",
        ) from None


def _remember(session: EditSession, parametrization: nn.Module) -> None:
    """Originals are written in place; buffers (the base of `orthogonal`) may also be replaced."""
    for tensor in (*parametrization.parameters(), *parametrization.buffers()):
        session.add_undo(partial(write_tensor, tensor, tensor.detach().clone()))
    for part in parametrization.modules():
        session.add_undo(partial(restore_dict, part._buffers, dict(part._buffers)))


def _owner_of(model: nn.Module, where: str) -> tuple[nn.Module | None, str]:
    """The module that a dotted name belongs to (None if it does not exist), and the last part of the name."""
    path, _, name = where.rpartition(".")
    try:
        return model.get_submodule(path), name
    except AttributeError:
        return None, name


def _code(edit: Edit) -> Iterator[str]:
    kind, size, parts = choice(edit, "kind", KINDS), number(edit, "size"), _parts(edit)
    weight = f'model.get_parameter("{edit.where}")'
    if edit.options.get("parametrized"):
        yield from _parametrized_code(edit, size)
    elif kind == "constant":
        yield f"torch.nn.init.constant_({weight}, {size!r})" if size else f"torch.nn.init.zeros_({weight})"
    elif kind == "identity":
        yield f"for part in {weight}.data.chunk({parts}):"
        yield f"    torch.nn.init.eye_(part).mul_({size!r})"
    else:
        sizes = f"0.0, {size!r}" if kind == "normal" else f"{size!r}"
        packed = f", parts={parts}" if parts > 1 else ""
        yield f'draw(model, "{edit.where}", torch.nn.init.{kind}_, {sizes}{packed})'


def _parametrized_code(edit: Edit, size: float) -> Iterator[str]:
    """Assign to a parametrized weight, so that its originals follow."""
    path, _, name = edit.where.rpartition(".")
    yield f'module = model.get_submodule("{path}")'
    yield f'values = torch.empty(getattr(module, "{name}").shape)'
    yield f'generator = torch.Generator().manual_seed(crc32("{edit.where}".encode()))'
    yield f"torch.nn.init.orthogonal_(values, {size!r}, generator=generator)"
    yield "with torch.no_grad():"
    yield f'    setattr(module, "{name}", values.to(getattr(module, "{name}")))'


draw = Action(
    name="draw", apply=_apply, code=_code, before=("from zlib import crc32", "import torch", FUNCTION)
)
