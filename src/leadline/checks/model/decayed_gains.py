"""W604: weight decay on norms, biases and scalar gates."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from leadline.checks._check import Symptom, check
from leadline.checks._examples import scaled_tensor, stack_with_decay
from leadline.checks._ranges import first_names
from leadline.checks._steps import decayed_tensors
from leadline.records import Profile

KINDS = {"norm": "gains and shifts of norms", "bias": "biases", "scalar": "scalars"}


@check(
    code="W604",
    name="decayed-gains",
    since="0.1.0",
    sick=stack_with_decay(scaled_tensor(name="norm.weight", kind="norm")),
    healthy=stack_with_decay(),
)
def decayed_gains(profile: Profile) -> Iterator[Symptom]:
    """Weight decay reaches gains of norms, biases or scalar gates.

    ## What it measures
    Parameters under decay that the pass used as gain or shift of a norm, as a bias, or as a single number that scales
    something (a residual gate, a temperature). Always info.

    ## Why it hurts
    A gain has a size of its own, near one, and a gate means something by its value; decay pulls both towards zero,
    where a gate closes and a norm's output vanishes. Biases are few and do not overfit. The effect is small at usual
    rates, which is why this is only said.

    ## When it is wrong
    Networks are trained with decay on everything, and well; gains of norms that are followed by a linear layer share
    its scale, so decay on both balances the two. Gains that are stored as an offset from one are pulled towards one.

    ## References
    He et al., "Bag of tricks for image classification", 2019 (its "no bias decay").
    """
    found = [each for _, each in decayed_tensors(profile) if each.kind in KINDS]
    if not found:
        return
    counts = Counter(each.kind for each in found)
    listed = ", ".join(f"{number} {KINDS[kind]}" for kind, number in counts.items())
    yield Symptom(
        severity="info",
        where=first_names([each.name for each in found]),
        message=f"weight decay reaches {listed}: put them into a group with weight_decay=0",
        evidence={kind: float(number) for kind, number in counts.items()},
    )
