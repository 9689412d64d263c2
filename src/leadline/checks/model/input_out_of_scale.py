"""F109: batch inputs of a size the first layer was not initialised for."""

from __future__ import annotations

import math
from collections.abc import Iterator

from leadline.checks._check import Symptom, check
from leadline.checks._examples import stack_with
from leadline.records import Facts, InputSignal, Profile

LARGE = 50.0  # root mean square; ours: raw 8-bit pixels have 80 to 180, standardised data has 1
SMALL = 0.02  # root mean square; ours: the same factor below 1


@check(
    code="F109",
    name="input-out-of-scale",
    since="0.1.0",
    refuted_by="learning",
    explains=("F103", "I308", "B202", "F101", "F106", "U501", "U502", "U509", "U503", "U504", "U505", "U523"),
    sick=stack_with(Facts(sources=(InputSignal(name="input", ms=1e-4, normalised=False),))),
    healthy=stack_with(Facts(sources=(InputSignal(name="input", ms=1.3, normalised=False),))),
)
def input_out_of_scale(profile: Profile) -> Iterator[Symptom]:
    r"""A batch input is much larger or smaller than 1, and nothing normalises it.

    ## What it measures
    The root mean square of each floating-point input that enters the depth axis. Fires above `LARGE` = 50 and below
    `SMALL` = 0.02, unless a norm comes before or right behind the first weight layer. A large one is a note: what it
    does is judged where it shows, in the first loss and the first step.

    ## Why it hurts
    Initialisations keep the size of a signal; they do not choose it. An input of size 100 makes logits of size 100:
    the first loss is far above that of guessing, saturating activations saturate, and the gradient of the first weights
    is a hundred times that of the others. One of size 0.01 makes those gradients a hundred times smaller, and biases
    drown it.

    ## When it is wrong
    If the model scales the input itself in a way that the trace does not show as a norm.

    ## References
    LeCun et al., "Efficient BackProp", 1998, section 4.3 (normalising the inputs).
    """
    for source in profile.facts.sources if profile.facts else ():
        rms = math.sqrt(source.ms)
        if source.normalised or source.ms == 0 or not math.isfinite(rms) or SMALL <= rms <= LARGE:
            continue
        yield Symptom(
            severity="warning" if rms < SMALL else "info",
            where=source.name,
            message=f"the input {source.name!r} has a root mean square of {rms:.3g}, and the first weights expect "
            "about 1: standardise the data",
            evidence={"rms": rms},
        )
