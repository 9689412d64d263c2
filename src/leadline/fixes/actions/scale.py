"""Multiply a parameter by a number: all of it, or the first rows of it."""

from __future__ import annotations

from collections.abc import Iterator

from leadline.fixes.edits import Action, Bench, number, parameter_at
from leadline.records import Edit


def _make(bench: Bench, edit: Edit) -> None:
    parameter = parameter_at(bench, edit)
    scaled = parameter.detach().clone()
    part = scaled[: round(len(scaled) * number(edit, "share"))] if "share" in edit.options else scaled
    part *= number(edit, "factor")
    bench.write(parameter, scaled)


def _code(edit: Edit) -> Iterator[str]:
    weight, factor = f'model.get_parameter("{edit.where}").data', number(edit, "factor")
    if "share" not in edit.options:
        yield f"{weight}.mul_({factor!r})"
    else:
        yield f"weight = {weight}"
        yield f"weight[: round(len(weight) * {number(edit, 'share')!r})] *= {factor!r}"


scale = Action(name="scale", make=_make, code=_code)
