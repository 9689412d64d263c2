"""I307: a bias that the norm behind it takes out again."""

from __future__ import annotations

from collections.abc import Iterator

from leadline.checks._check import Symptom, check
from leadline.checks._examples import stack_with, weight
from leadline.records import Facts, Profile

REMOVING = ("batch_norm", "instance_norm")  # they subtract each unit's own mean, of which a bias is part


@check(
    code="I307",
    name="bias-before-norm",
    since="0.1.0",
    sick=stack_with(Facts(weights=(weight(0, norm="batch_norm", bias="layers.0.bias"),))),
    healthy=stack_with(Facts(weights=(weight(0, norm="layer_norm", bias="layers.0.bias"),))),
)
def bias_before_norm(profile: Profile) -> Iterator[Symptom]:
    r"""A weight layer has a bias that the batch norm behind it subtracts at once.

    ## What it measures
    Weight layers with a trainable bias whose output is read by a batch or instance norm and by nothing else.

    ## Why it hurts
    It does not, much: these norms subtract each unit's mean, so the bias has no effect and a gradient of zero up to
    rounding. Adam turns that rounding into steps of full size, and weight decay acts on nothing. Pass `bias=False`.

    ## When it is wrong
    A layer norm subtracts the mean over units, not each unit's own: a bias before it does count, and does not fire.

    ## References
    Ioffe and Szegedy, "Batch normalization", 2015, section 3.2 (the bias can be ignored).
    """
    found = [w for w in (profile.facts.weights if profile.facts else ()) if w.bias and w.norm in REMOVING]
    if found:
        alone = len(found) == 1
        who = "a bias has" if alone else f"{len(found)} biases have"
        yield Symptom(
            severity="info",
            where=found[0].bias if alone else f"{found[0].bias} … {found[-1].bias}",
            message=f"{who} no effect: the {found[0].norm} behind {'it' if alone else 'each'} subtracts it again",
            evidence={"biases": float(len(found))},
        )
