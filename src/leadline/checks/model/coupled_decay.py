"""W605: L2 regularisation inside Adam."""

from __future__ import annotations

from collections.abc import Iterator

from leadline.checks._check import Symptom, check
from leadline.checks._examples import stack_with_decay
from leadline.readings.symmetry.equilibrium import is_decoupled
from leadline.records import Profile

ADAPTIVE = frozenset({"Adam", "NAdam", "RAdam", "Adamax", "RMSprop", "Adagrad", "Adadelta"})


@check(
    code="W605",
    name="coupled-decay",
    since="0.1.0",
    sick=stack_with_decay(optimizer="Adam"),
    healthy=stack_with_decay(optimizer="AdamW"),
)
def coupled_decay(profile: Profile) -> Iterator[Symptom]:
    r"""Weight decay is added to the gradient of an optimiser that rescales gradients.

    ## What it measures
    Whether an optimiser with its own scale for each parameter (Adam and its like) has `weight_decay` and is not the
    decoupled kind. Always info.

    ## Why it hurts
    The decay $\lambda w$ goes through the same division as the gradient: parameters with large gradients are hardly
    decayed, those with small ones strongly, and the setting means something else for every tensor. On scale-invariant
    weights the equilibrium norm is $(\eta \sqrt{d}\,G / 2\lambda)^{1/3}$: it depends on the gradient.

    ## When it is wrong
    With a tiny decay neither matters. A recipe that was tuned with L2 in Adam should keep it.

    ## References
    Loshchilov and Hutter, "Decoupled weight decay regularization", 2019.
    """
    found = profile.optimizer
    if found is None or found.name not in ADAPTIVE:
        return
    groups = [each for each in found.groups if each.weight_decay > 0 and not is_decoupled(found.name, each)]
    if groups:
        yield Symptom(
            severity="info",
            where=found.name,
            message=f"{found.name} adds the decay ({groups[0].weight_decay:g}) to the gradient and rescales both; "
            "AdamW decays the weights themselves",
            evidence={"weight_decay": groups[0].weight_decay, "groups": float(len(groups))},
        )
