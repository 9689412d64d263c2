"""Redraw a weight from a generator seeded by its own name, or fill it with one number."""

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
    Bench,
    _refill,
    _write,
    choice,
    number,
    parameter_at,
    rounded,
    whole,
)
from leadline.records import Edit
from leadline.records.repair import Option


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


# Draw a weight afresh from a generator that its own name seeds, or fill it with one number.

KINDS = ("normal", "orthogonal", "identity", "constant")
"""What a tensor is filled with; `size` is the standard deviation, the gain, the diagonal, the constant."""
FUNCTION = '''\
def draw(model, name, fill, *size, parts=1):
    """New numbers for a weight. Its name is the seed: they are the same in every run, on every device."""
    values = torch.empty(model.get_parameter(name).shape, dtype=torch.float32, device="cpu")
    generator = torch.Generator().manual_seed(crc32(name.encode()))
    for part in values.chunk(parts):
        fill(part, *size, generator=generator)
    model.get_parameter(name).data.copy_(values)'''


def draw_edit(where: str, kind: str, size: float, *, packed: int = 1) -> Edit:
    """The edit that draws the weight named `where`; each of its `packed` parts on its own."""
    options: dict[str, Option] = {"kind": kind, "size": rounded(size)}
    return Edit(action="draw", where=where, options=options | ({"packed": packed} if packed > 1 else {}))


def seeded(where: str) -> torch.Generator:
    """A generator for what has this name: no two layers draw the same, and a recipe replays bit for bit."""
    return torch.Generator().manual_seed(crc32(where.encode()))


def _make(bench: Bench, edit: Edit) -> None:
    owner, name = owner_of(bench.model, edit.where)
    known = getattr(owner, name, None)
    weight = known if isinstance(known, Tensor) else parameter_at(bench, edit)
    write_at(bench, edit, _drawn(weight.shape, edit).to(weight))


def _drawn(shape: torch.Size, edit: Edit) -> Tensor:
    """In float32 on the CPU, whatever the weight's dtype and device: the same seed gives the same numbers."""
    kind, size = choice(edit, "kind", KINDS), number(edit, "size")
    generator = seeded(edit.where)
    values = torch.empty(shape, dtype=torch.float32, device="cpu")
    for part in values.chunk(_parts(edit)):
        _fill(part, kind, size, generator)
    return values


def _parts(edit: Edit) -> int:
    return whole(edit, "packed") if "packed" in edit.options else 1


def _fill(part: Tensor, kind: str, size: float, generator: torch.Generator) -> None:
    if kind == "normal":
        torch.nn.init.normal_(part, 0.0, size, generator=generator)
    elif kind == "orthogonal":
        torch.nn.init.orthogonal_(part, size, generator=generator)
    elif kind == "identity":
        torch.nn.init.eye_(part).mul_(size)
    else:
        torch.nn.init.constant_(part, size)


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
    """A weight that a parametrisation makes is assigned to, so that its originals follow."""
    path, _, name = edit.where.rpartition(".")
    yield f'module = model.get_submodule("{path}")'
    yield f'values = torch.empty(getattr(module, "{name}").shape)'
    yield f'generator = torch.Generator().manual_seed(crc32("{edit.where}".encode()))'
    yield f"torch.nn.init.orthogonal_(values, {size!r}, generator=generator)"
    yield "with torch.no_grad():"
    yield f'    setattr(module, "{name}", values.to(getattr(module, "{name}")))'


draw = Action(
    name="draw", make=_make, code=_code, before=("from zlib import crc32", "import torch", FUNCTION)
)
