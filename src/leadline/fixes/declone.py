"""declone: layers that start as copies get numbers of their own."""

from __future__ import annotations

import math
from collections.abc import Iterator

from leadline.fixes._edits.draw import draw_edit
from leadline.fixes._engine.fix import Patient, Plan, fix
from leadline.fixes._engine.lookup import is_fresh
from leadline.readings.weights import MIN_MATRIX_ENTRIES, is_constant
from leadline.records import Edit, Parameter


@fix(name="declone", answers=("I303", "R402", "F106", "F101"), reach="init", since="0.2")
def declone(patient: Patient) -> Iterator[Plan]:
    r"""Draws every copy of a weight anew, at the variance it has.

    ## What it does
    Matrices of one shape with bitwise the same mean and second moment are copies. The first of each family stays;
    each of the others is drawn from a normal distribution of its own measured variance, with a seed of its own.

    ## Why it works
    `nn.TransformerEncoder` deep-copies one layer: all layers start identical, their branches add up coherently, and the
    stream grows like depth squared instead of depth. Independent layers do not.

    ## What it costs
    Nothing in a fresh model.

    ## When it does not help
    Layers that share one parameter (ALBERT) are tied, not copied: they stay tied.

    ## References
    PyTorch issues 72253 and 86274; the growth law: `docs/explanation/theory.md`.
    """
    names = {each.name for family in _families(patient) for each in family[1:]}
    copies = [each for each in patient.trace.parameters if each.name in names]
    if copies and is_fresh(patient):
        edits = tuple(_redrawn(each) for each in copies if each.trainable)
        yield Plan(title=f"{len(edits)} copied weights drawn on their own", edits=edits, promise=0.7)


def copy_edits(patient: Patient) -> tuple[Edit, ...]:
    """The edits alone, for fixes that repair copies on the way."""
    return tuple(edit for plan in declone.propose(patient) for edit in plan.edits)


def _redrawn(parameter: Parameter) -> Edit:
    return draw_edit(parameter.name, "normal", math.sqrt(parameter.ms or 0))


def _families(patient: Patient) -> list[list[Parameter]]:
    groups: dict[tuple[object, ...], list[Parameter]] = {}
    for each in patient.trace.parameters:
        if len(each.shape) > 1 and each.count >= MIN_MATRIX_ENTRIES and each.ms and not is_constant(each):
            groups.setdefault((each.shape, each.mean, each.ms), []).append(each)
    return [group for group in groups.values() if len(group) > 1]
