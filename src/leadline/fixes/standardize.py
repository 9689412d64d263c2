"""The fix standardize: inputs of unit size."""

from __future__ import annotations

import math
from collections.abc import Iterator

from leadline.fixes._engine.fix import FixContext, Plan, fix
from leadline.records import Edit

# Heuristic: root mean square, or one over it; within this factor of 1 usual initializations and rates still work.
MAX_INPUT_SIZE = 5.0


@fix(
    name="standardize",
    answers=("F109", "I308", "F103", "F106", "B202", "U50", "U52", "U53", "F102", "B201"),
    reach="init",
    since="0.1.0",
)
def standardize(context: FixContext) -> Iterator[Plan]:
    r"""Subtracts the mean of the model's floating-point inputs and divides by their standard deviation.

    ## What it does
    A forward pre-hook on the model maps every floating-point argument $x$ to $(x - m)/s$, where $m$ and $s$ are
    measured on the batch and then fixed. Nothing is learned and nothing else changes. Other initial values of the first
    layer would have the same effect on the outputs. You can do the same in the data pipeline instead.

    ## Why it works
    Initializations preserve the size of a signal; they do not choose it. An input of size 100 makes logits of size 100
    and first gradients a hundred times too large.

    ## What it costs
    One subtraction and one division of the input. Everything that feeds the model in production must do the same.

    ## When it does not help
    If the sizes of several arguments or features differ much: standardize each of them in the data pipeline.

    ## References
    LeCun et al., "Efficient BackProp", 1998, section 4.3.
    """
    sources = context.profile.facts.sources if context.profile.facts else ()
    inputs = [each for each in sources if 0 < each.ms < math.inf and not each.normalized]
    if len(inputs) != 1 or 1 / MAX_INPUT_SIZE < math.sqrt(inputs[0].ms) < MAX_INPUT_SIZE:
        return
    values = (value for value in context.trace.values if value.source == "input" and value.floating)
    stats = next((value.forward for value in values if value.forward), None)
    if stats is None or not 0 < stats.var < math.inf:
        return
    mean, deviation = float(f"{stats.mean:.6g}"), float(f"{math.sqrt(stats.var):.6g}")
    edit = Edit(action="standardize", options={"mean": mean, "deviation": deviation})
    title = f"inputs standardized: minus {mean:.3g}, divided by {deviation:.3g}"
    yield Plan(title=title, edits=(edit,), promise=0.9)
