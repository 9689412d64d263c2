"""Draw a weight afresh from a seeded generator, or fill it with one number."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from leadline.fixes.edits import Action, Bench, choice, number, parameter_at, whole
from leadline.fixes.tensors import owner_of, write_at
from leadline.records import Edit
from leadline.records.repair import Option

FILLS = {
    "normal": "torch.nn.init.normal_({0}, 0.0, {1!r}, generator=generator)",
    "orthogonal": "torch.nn.init.orthogonal_({0}, {1!r}, generator=generator)",
    "identity": "torch.nn.init.eye_({0}).mul_({1!r})",
    "constant": "torch.nn.init.constant_({0}, {1!r})",
}
"""What each kind fills a tensor with; `size` is the standard deviation, the gain, the diagonal, the constant."""


def draw_edit(where: str, kind: str, size: float, *, seed: int = 0, packed: int = 1) -> Edit:
    """The edit that draws the weight named `where`; each of its `packed` parts on its own."""
    options: dict[str, Option] = {"kind": kind, "size": size, "seed": seed, "packed": packed}
    return Edit(action="draw", where=where, options=options)


def _make(bench: Bench, edit: Edit) -> None:
    owner, name = owner_of(bench.model, edit.where)
    known = getattr(owner, name, None)
    weight = known if isinstance(known, Tensor) else parameter_at(bench, edit)
    write_at(bench, edit, _drawn(weight.shape, edit).to(weight))


def _drawn(shape: torch.Size, edit: Edit) -> Tensor:
    """In float32 on the CPU, whatever the weight's dtype and device: the same seed gives the same numbers."""
    kind, size = choice(edit, "kind", FILLS), number(edit, "size")
    generator = torch.Generator().manual_seed(whole(edit, "seed"))
    values = torch.empty(shape, dtype=torch.float32, device="cpu")
    packed = whole(edit, "packed")
    for part in values.chunk(packed) if packed > 1 else [values]:
        _fill(part, kind, size, generator)
    return values


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
    kind, size, packed = choice(edit, "kind", FILLS), number(edit, "size"), whole(edit, "packed")
    path, _, name = edit.where.rpartition(".")
    owner = f'model.get_submodule("{path}")' if path else "model"
    weight = f"{owner}.{name}" if name.isidentifier() else f'getattr({owner}, "{name}")'
    if kind in ("normal", "orthogonal"):
        yield f"generator = torch.Generator().manual_seed({whole(edit, 'seed')})"
    yield f"values = torch.empty({weight}.shape)"
    if packed > 1:
        yield f"for part in values.chunk({packed}):"
        yield f"    {FILLS[kind].format('part', size)}"
    else:
        yield FILLS[kind].format("values", size)
    if edit.options.get("parametrized"):
        yield "with torch.no_grad():"
        yield f'    setattr({owner}, "{name}", values.to({weight}))'
    else:
        yield f"{weight}.data.copy_(values)"


draw = Action(name="draw", make=_make, code=_code, imports=("import torch",))
