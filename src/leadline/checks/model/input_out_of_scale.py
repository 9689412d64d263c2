"""F109: a batch input whose size does not fit the initialization of the first layer."""

from __future__ import annotations

import math
from collections.abc import Iterator

from leadline.checks._check import Symptom, check
from leadline.checks._examples import stack_with
from leadline.records import InputSignal, ModelFacts, Profile
from leadline.records.wiring import MIN_TELLING_ELEMENTS

# Heuristic: root mean square. Raw 8-bit pixels have 80 to 180, standardized data has 1.
MAX_RMS = 50.0
# Heuristic: root mean square; as far below 1 as MAX_RMS is above.
MIN_RMS = 0.02


@check(
    code="F109",
    name="input-out-of-scale",
    since="0.1.0",
    refuted_by="learning",
    explains=(
        "F103",
        "I308",
        "B202",
        "F101",
        "F106",
        "U501",
        "U502",
        "U509",
        "U503",
        "U504",
        "U505",
        "U521",
        "U523",
        "U525",
        "U535",
    ),
    sick=stack_with(ModelFacts(sources=(InputSignal(name="input", ms=1e-4, elements=64, normalized=False),))),
    healthy=stack_with(
        ModelFacts(sources=(InputSignal(name="input", ms=1.3, elements=64, normalized=False),))
    ),
)
def input_out_of_scale(profile: Profile) -> Iterator[Symptom]:
    r"""A batch input is much larger or smaller than 1, and nothing normalizes it.

    ## What it measures
    The root mean square of each floating-point input that enters the depth axis. Fires above `MAX_RMS` = 50 and
    below `MIN_RMS` = 0.02, unless a norm comes before or directly after the first weight layer. Without trial steps a
    large input is a note, because many networks learn from it all the same. It is an error if every element of all
    these inputs is 0, and there are at least `MIN_TELLING_ELEMENTS` = 8.

    ## Why it hurts
    Initializations preserve the size of a signal; they do not set it. An input of size 100 makes logits of size 100:
    the first loss is far above that of guessing, bounded activations saturate, and the gradient of the first weights is
    a hundred times that of the others. An input of size 0.01 makes those gradients a hundred times smaller, and biases
    drown it.

    ## When it is wrong
    The model may scale the input itself in a way that the trace does not show as a norm.

    ## References
    LeCun et al., "Efficient BackProp", 1998, section 4.3 (normalizing the inputs).
    """
    sources = profile.facts.sources if profile.facts else ()
    is_zero = bool(sources) and all(source.ms == 0 for source in sources)
    if is_zero and sum(source.elements for source in sources) >= MIN_TELLING_ELEMENTS:
        yield Symptom(
            severity="error",
            where=sources[0].name,
            message=f"every element of the input `{sources[0].name}` is 0, so no output can depend on it",
            action="Look at how the batch is made: load real data, and check padding, masks and normalization.",
            evidence={"rms": 0.0},
        )
    for source in sources:
        rms = math.sqrt(source.ms)
        if source.normalized or source.ms == 0 or not math.isfinite(rms) or MIN_RMS <= rms <= MAX_RMS:
            continue
        yield Symptom(
            severity="warning" if rms < MIN_RMS or profile.rehearsal is not None else "info",
            where=source.name,
            message=f"the input `{source.name}` has a root mean square of {rms:.3g} but the first weights expect "
            "about 1",
            action=f"Standardize `{source.name}` before it enters the model: `(x - x.mean()) / x.std()`.",
            evidence={"rms": rms},
        )
