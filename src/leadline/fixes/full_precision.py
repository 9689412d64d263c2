"""full-precision: weights in float32, so that small steps are kept."""

from __future__ import annotations

from collections.abc import Iterator

from leadline.fixes._engine.fix import Patient, Plan, fix
from leadline.records import Edit

NARROW = ("bfloat16", "float16")


@fix(name="full-precision", answers=("U506", "N70", "U522"), reach="architecture", since="0.2")
def full_precision(patient: Patient) -> Iterator[Plan]:
    r"""Keeps the weights in float32 instead of bfloat16 or float16.

    ## What it does
    Parameters and buffers are converted in place, so that the optimiser goes on with the same objects, and a forward
    pre-hook casts the inputs. Under `torch.autocast` the matrix products can go on in the narrow type; that line is
    in the code.

    ## Why it works
    bfloat16 has eight bits: adding less than 0.4 % of a weight to it changes nothing, and most steps are smaller. Below
    6e-8 a float16 gradient is zero.

    ## What it costs
    Twice the memory for weights, gradients and the optimiser's state, and the slower products unless autocast is on.

    ## When it does not help
    If the optimiser keeps float32 copies of its own already, or rounds stochastically.

    ## References
    Micikevicius et al., arXiv 1710.03740, section 3.1 (master copies).
    """
    precision = patient.profile.facts.precision if patient.profile.facts else None
    if precision is None or precision.parameters not in NARROW:
        return
    yield Plan(
        title=f"weights kept in float32 instead of {precision.parameters}",
        edits=(Edit(action="float32"),),
        promise=0.6,
    )
