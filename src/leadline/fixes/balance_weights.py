"""balance: the same function with weights of comparable size."""

from __future__ import annotations

import math
from collections.abc import Iterator

from leadline.fixes._engine.fix import Patient, Plan, fix
from leadline.readings.symmetry.cone import combine_generators, find_balance
from leadline.readings.symmetry.rescale import find_symmetry
from leadline.records import Edit


@fix(name="balance", answers=("B204", "U505", "U503", "U502", "W601"), reach="function", since="0.2")
def balance(patient: Patient) -> Iterator[Plan]:
    r"""Rescales layers against each other so that none outweighs the rest; what the model computes stays.

    ## What it does
    Where the symmetry reading found free rescalings (a ReLU lets one layer be multiplied by $a$ and the next be
    divided by it; values and outputs, queries and keys of an attention likewise), it moves along them to the least
    sum of squares. Factors are rounded to powers of two, so that in floating point, too, the function stays what it
    is. Scales in front of norms are left alone: eps makes those inexact.

    ## Why it works
    The gradient of a small layer between large ones is large, and one rate cannot suit all of them. Of all weights that
    compute the same, the balanced ones have gradients of the most even size.

    ## What it costs
    Nothing: the outputs are the same bits, but for overflow. An optimiser's state that has begun to build up is not
    rescaled with the weights.

    ## When it does not help
    If sizes differ for a reason that no free rescaling reaches: biases, activations without scale (tanh, GELU), norms.

    ## References
    Neyshabur et al., arXiv 1506.02617 (path-SGD: invariances of ReLU networks); `docs/explanation/symmetry.md`.
    """
    found = find_symmetry(patient.case, in_front_of_norms=False, only_in_training=False)
    chosen = [each.exponents for each in found.generators if not each.statistics]
    squares = {each.name: (each.norm or 0.0) ** 2 for each in found.tensors}
    moves = {i: round(move / math.log(2)) for i, move in find_balance(chosen, squares).items()}
    powers = {name: round(power) for name, power in combine_generators(chosen, moves).items() if round(power)}
    edits = tuple(
        Edit(action="scale", where=name, options={"factor": 2.0**power}) for name, power in powers.items()
    )
    if edits:
        yield Plan(
            title=f"{len(edits)} weights rescaled against each other by powers of two",
            edits=edits,
            promise=0.4,
        )
