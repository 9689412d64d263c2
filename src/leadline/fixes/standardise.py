"""standardise: inputs of size one."""

from __future__ import annotations

import math
from collections.abc import Iterator

from leadline.fixes._engine.fix import Patient, Plan, fix
from leadline.records import Edit

FAR = 5.0  # root mean square, or one over it, beyond which an input is worth standardising (ours)


@fix(
    name="standardise",
    answers=("F109", "I308", "F103", "F106", "B202", "U50", "U52", "F102", "B201"),
    reach="architecture",
    since="0.2",
)
def standardise(patient: Patient) -> Iterator[Plan]:
    r"""Subtracts the mean of the model's floating-point inputs and divides by their deviation.

    ## What it does
    A forward pre-hook on the model maps every floating-point argument $x$ to $(x - m)/s$, with $m$ and $s$ measured
    on the batch and fixed from then on. Nothing is learned and nothing else changes; do the same in the data pipeline
    if you prefer.

    ## Why it works
    Initialisations keep a signal's size, they do not choose it: an input of size 100 makes logits of size 100 and first
    gradients a hundred times too large.

    ## What it costs
    One subtraction and one division of the input. Anything that feeds the model in production must go through it too.

    ## When it does not help
    If inputs of several arguments or features have very different sizes: standardise each in the data pipeline.

    ## References
    LeCun et al., "Efficient BackProp", 1998, section 4.3.
    """
    sources = patient.profile.facts.sources if patient.profile.facts else ()
    seen = [each for each in sources if 0 < each.ms < math.inf and not each.normalised]
    if len(seen) != 1 or 1 / FAR < math.sqrt(seen[0].ms) < FAR:
        return
    stats = next(
        (v.forward for v in patient.trace.values if v.source == "input" and v.floating and v.forward), None
    )
    if stats is None or not 0 < stats.var < math.inf:
        return
    mean, deviation = float(f"{stats.mean:.6g}"), float(f"{math.sqrt(stats.var):.6g}")
    edit = Edit(action="standardise", options={"mean": mean, "deviation": deviation})
    title = f"inputs standardised: less {mean:.3g}, over {deviation:.3g}"
    yield Plan(title=title, edits=(edit,), promise=0.9)
