"""W604: weight decay on norms, biases and scalar gates."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from leadline.checks._check import Symptom, check
from leadline.checks._examples import scaled_tensor, stack_with_decay
from leadline.checks._ranges import first_names
from leadline.checks._steps import decayed_tensors
from leadline.records import Profile

# Singular and plural.
KINDS = {
    "norm": ("norm parameter", "norm parameters"),
    "bias": ("bias", "biases"),
    "scalar": ("scalar", "scalars"),
}


@check(
    code="W604",
    name="decayed-gains",
    since="0.1.0",
    sick=stack_with_decay(scaled_tensor(name="norm.weight", kind="norm")),
    healthy=stack_with_decay(),
)
def decayed_gains(profile: Profile) -> Iterator[Symptom]:
    """Weight decay acts on gains of norms, biases or scalar gates.

    ## What it measures
    Parameters under decay that the model uses as gain or shift of a norm, as a bias, or as a single number that scales
    something (a residual gate, a temperature). It is always a note.

    ## Why it hurts
    A gain has a natural size near one, and the value of a gate has a meaning. Decay pulls both toward zero, where a
    gate closes and the output of a norm vanishes. Biases are few and do not overfit. At usual learning rates the effect
    is small.

    ## When it is wrong
    Many networks train well with decay on everything. If a linear layer follows a norm, its weight and the gain of the
    norm share one scale, so decay on both balances them. Gains that are stored as an offset from one are pulled toward
    one.

    ## References
    He et al., "Bag of tricks for image classification", 2019 (its "no bias decay").
    """
    affected = [tensor for _, tensor in decayed_tensors(profile) if tensor.kind in KINDS]
    if not affected:
        return
    counts = Counter(tensor.kind for tensor in affected)
    listed = ", ".join(f"{number} {KINDS[kind][number > 1]}" for kind, number in counts.items())
    yield Symptom(
        severity="info",
        where=first_names([tensor.name for tensor in affected]),
        message=f"weight decay acts on {listed}",
        action="Move these parameters into a parameter group with `weight_decay=0`.",
        evidence={kind: float(number) for kind, number in counts.items()},
    )
