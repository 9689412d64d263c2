"""Multiply a parameter by a number."""

from __future__ import annotations

from collections.abc import Iterator

from leadline.fixes.edits import Action, Bench, number, parameter_at
from leadline.records import Edit


def _make(bench: Bench, edit: Edit) -> None:
    parameter = parameter_at(bench, edit)
    bench.write(parameter, parameter.detach() * number(edit, "factor"))


def _code(edit: Edit) -> Iterator[str]:
    yield f'model.get_parameter("{edit.where}").data.mul_({number(edit, "factor")!r})'


scale = Action(name="scale", make=_make, code=_code)
