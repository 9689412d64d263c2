"""The fix balance: the same function with weights of comparable size."""

from __future__ import annotations

import math
from collections.abc import Iterator

from leadline.fixes._engine.fix import FixContext, Plan, fix
from leadline.readings.symmetry.cone import combine_generators, find_balance
from leadline.records import Edit


@fix(name="balance", answers=("B204", "U505", "U503", "U502", "W601"), reach="function", since="0.1.0")
def balance(context: FixContext) -> Iterator[Plan]:
    r"""Rescales layers relative to each other so that none outweighs the rest; the function stays the same.

    ## What it does
    Some rescalings do not change the function: a ReLU lets one layer be multiplied by $a$ and the next divided by
    it; the same holds for values and outputs, and for queries and keys, of an attention. The fix moves along the
    rescalings that the symmetry reading found to the smallest sum of squared weights. Factors are rounded to powers of
    two, so that the function is also the same in floating point. Rescalings of weights before a norm are left out,
    because the norm's eps makes them inexact.

    ## Why it works
    A small layer between large ones has a large gradient, and one learning rate cannot suit all of them. Among all
    weights that compute the same function, the balanced ones have gradients of the most even size.

    ## What it costs
    Nothing: the outputs are the same bits, except for overflow. Optimizer state that has already built up is not
    rescaled with the weights.

    ## When it does not help
    If sizes differ in a way that no free rescaling reaches: biases, activations with a scale of their own (tanh,
    GELU), norms.

    ## References
    Neyshabur et al., arXiv 1506.02617 (path-SGD: invariances of ReLU networks); `docs/explanation/symmetry.md`.
    """
    from leadline.readings.symmetry.rescale import find_symmetry  # torch-free start

    symmetry = find_symmetry(context.case, in_front_of_norms=False, only_in_training=False)
    rescalings = [each.exponents for each in symmetry.generators if not each.statistics]
    squares = {each.name: (each.norm or 0.0) ** 2 for each in symmetry.tensors}
    moves = {i: round(move / math.log(2)) for i, move in find_balance(rescalings, squares).items()}
    powers = {
        name: round(power) for name, power in combine_generators(rescalings, moves).items() if round(power)
    }
    edits = tuple(
        Edit(action="scale", where=name, options={"factor": 2.0**power}) for name, power in powers.items()
    )
    if edits:
        yield Plan(
            title=f"{len(edits)} weights rescaled relative to each other by powers of two",
            edits=edits,
            promise=0.4,
        )
