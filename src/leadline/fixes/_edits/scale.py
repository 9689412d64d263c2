"""Multiply a parameter by a number: all of it, or some of the matrices that are packed in it."""

from __future__ import annotations

from collections.abc import Iterator

from leadline.errors import InputError
from leadline.fixes._engine.edits import Action, EditSession, integer, number, parameter_at
from leadline.records import Edit


def _apply(session: EditSession, edit: Edit) -> None:
    parameter = parameter_at(session, edit)
    scaled = parameter.detach().clone()
    if "parts" not in edit.options:
        session.write(parameter, scaled.mul_(number(edit, "factor")))
        return
    parts, dim, first, last = _packing(edit)
    if scaled.ndim <= dim or scaled.shape[dim] % parts:
        raise InputError(
            expected=f"a parameter {edit.where!r} of {parts} equal parts along dimension {dim}",
            got=f"the shape {tuple(scaled.shape)}",
            fix="apply the recipe to a model built by the same code",
        )
    for part in scaled.chunk(parts, dim)[first : last + 1]:
        part.mul_(number(edit, "factor"))
    session.write(parameter, scaled)


def _packing(edit: Edit) -> tuple[int, int, int, int]:
    return integer(edit, "parts"), integer(edit, "dim"), integer(edit, "first"), integer(edit, "last")


def _code(edit: Edit) -> Iterator[str]:
    weight, factor = f'model.get_parameter("{edit.where}").data', number(edit, "factor")
    if "parts" not in edit.options:
        yield f"{weight}.mul_({factor!r})"
        return
    parts, dim, first, last = _packing(edit)
    chunks = f"{weight}.chunk({parts}{f', {dim}' if dim else ''})"
    if first == last:
        yield f"{chunks}[{first}].mul_({factor!r})"
    else:
        yield f"for part in {chunks}[{first}:{last + 1}]:"
        yield f"    part.mul_({factor!r})"


scale = Action(name="scale", apply=_apply, code=_code)
