"""The fix declone: layers that start as copies of each other are drawn separately."""

from __future__ import annotations

import math
from collections.abc import Iterator

from leadline.fixes._engine.edit_builders import draw_edit
from leadline.fixes._engine.fix import FixContext, Plan, fix
from leadline.fixes._engine.lookup import is_fresh
from leadline.readings.weights import MIN_MATRIX_ENTRIES, is_constant
from leadline.records import Edit, Parameter


@fix(name="declone", answers=("I303", "R402", "F106", "F101"), reach="init", since="0.1.0")
def declone(context: FixContext) -> Iterator[Plan]:
    r"""Draws every copy of a weight anew, at the variance it has.

    ## What it does
    Matrices of one shape whose mean and second moment are bitwise equal are copies. The first of each group stays; each
    of the others is drawn from a normal distribution with its measured variance, seeded by its own name.

    ## Why it works
    `nn.TransformerEncoder` deep-copies one layer: all layers start identical, their branches add up coherently, and the
    stream grows like the square of the depth. Independent layers make it grow like the depth.

    ## What it costs
    Nothing in a fresh model.

    ## When it does not help
    Layers that share one parameter (ALBERT) are tied, not copied; they stay tied.

    ## References
    PyTorch issues 72253 and 86274; the growth law: `docs/explanation/theory.md`.
    """
    names = {parameter.name for group in _copies(context) for parameter in group[1:]}
    copies = [parameter for parameter in context.trace.parameters if parameter.name in names]
    if copies and is_fresh(context):
        edits = tuple(_draw(parameter) for parameter in copies if parameter.trainable)
        yield Plan(title=f"{len(edits)} copied weights drawn separately", edits=edits, promise=0.7)


def copy_edits(context: FixContext) -> tuple[Edit, ...]:
    """The edits of `declone`, for fixes that include them."""
    return tuple(edit for plan in declone.propose(context) for edit in plan.edits)


def _draw(parameter: Parameter) -> Edit:
    return draw_edit(parameter.name, "normal", math.sqrt(parameter.ms or 0))


def _copies(context: FixContext) -> list[list[Parameter]]:
    """Groups of matrices that are copies of each other."""
    groups: dict[tuple[object, ...], list[Parameter]] = {}
    for each in context.trace.parameters:
        if len(each.shape) > 1 and each.count >= MIN_MATRIX_ENTRIES and each.ms and not is_constant(each):
            groups.setdefault((each.shape, each.mean, each.ms), []).append(each)
    return [group for group in groups.values() if len(group) > 1]
