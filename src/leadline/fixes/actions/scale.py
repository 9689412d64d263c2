"""Multiply a parameter by a number: all of it, or the rows from one share of them to another."""

from __future__ import annotations

from collections.abc import Iterator

from leadline.fixes.edits import Action, Bench, number, parameter_at
from leadline.records import Edit


def _make(bench: Bench, edit: Edit) -> None:
    parameter = parameter_at(bench, edit)
    scaled = parameter.detach().clone()
    part = scaled[_rows(len(scaled), edit)] if _is_partial(edit) else scaled
    part *= number(edit, "factor")
    bench.write(parameter, scaled)


def _is_partial(edit: Edit) -> bool:
    return "from" in edit.options or "to" in edit.options


def _rows(count: int, edit: Edit) -> slice:
    start = number(edit, "from") if "from" in edit.options else 0.0
    stop = number(edit, "to") if "to" in edit.options else 1.0
    return slice(round(count * start), round(count * stop))


def _code(edit: Edit) -> Iterator[str]:
    weight, factor = f'model.get_parameter("{edit.where}").data', number(edit, "factor")
    if not _is_partial(edit):
        yield f"{weight}.mul_({factor!r})"
        return
    start, stop = edit.options.get("from", 0.0), edit.options.get("to", 1.0)
    yield f"weight = {weight}"
    yield f"weight[round(len(weight) * {start!r}) : round(len(weight) * {stop!r})] *= {factor!r}"


scale = Action(name="scale", make=_make, code=_code)
