"""The fix full-precision: weights in float32, so that small steps change them."""

from __future__ import annotations

from collections.abc import Iterator

from leadline.fixes._engine.fix import FixContext, Plan, fix
from leadline.records import Edit

NARROW_TYPES = ("bfloat16", "float16")


@fix(name="full-precision", answers=("U506", "N70", "U522", "U53"), reach="architecture", since="0.1.0")
def full_precision(context: FixContext) -> Iterator[Plan]:
    r"""Stores the weights in float32 instead of bfloat16 or float16.

    ## What it does
    Parameters and buffers are converted in place, so that the optimizer goes on with the same objects, and a forward
    pre-hook casts the inputs. Under `torch.autocast` the matrix products can still run in the narrow type.

    ## Why it works
    bfloat16 has eight bits of precision: adding less than 0.4 % of a weight to it changes nothing, and most steps are
    smaller. A float16 gradient below 6e-8 is zero.

    ## What it costs
    Twice the memory for weights, gradients and optimizer state, and slower products unless autocast is on.

    ## When it does not help
    If the optimizer already keeps float32 copies, or rounds stochastically.

    ## References
    Micikevicius et al., arXiv 1710.03740, section 3.1 (master copies).
    """
    precision = context.profile.facts.precision if context.profile.facts else None
    if precision is None or precision.parameters not in NARROW_TYPES:
        return
    yield Plan(
        title=f"weights in float32 instead of {precision.parameters}",
        edits=(Edit(action="float32"),),
        promise=0.6,
    )
