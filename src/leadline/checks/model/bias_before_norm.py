"""I307: a bias that the norm after it removes."""

from __future__ import annotations

from collections.abc import Iterator

from leadline.checks._check import Symptom, check
from leadline.checks._examples import stack_with, weight
from leadline.records import ModelFacts, Profile

# They subtract the mean of each unit, which includes its bias.
MEAN_REMOVING_NORMS = ("batch_norm", "instance_norm")


@check(
    code="I307",
    name="bias-before-norm",
    since="0.1.0",
    sick=stack_with(ModelFacts(weights=(weight(0, norm="batch_norm", bias="layers.0.bias"),))),
    healthy=stack_with(ModelFacts(weights=(weight(0, norm="layer_norm", bias="layers.0.bias"),))),
)
def bias_before_norm(profile: Profile) -> Iterator[Symptom]:
    r"""A weight layer has a bias that the batch norm after it subtracts again.

    ## What it measures
    Weight layers with a trainable bias whose output is read by a batch norm or instance norm and by nothing else.

    ## Why it hurts
    It hurts little. These norms subtract the mean of each unit, so the bias has no effect and its gradient is zero up
    to rounding. Adam turns that rounding into steps of full size, and weight decay acts on nothing.

    ## When it is wrong
    A layer norm subtracts the mean over units, not the mean of each unit. A bias before it has an effect, and the check
    does not fire.

    ## References
    Ioffe and Szegedy, "Batch normalization", 2015, section 3.2 (the bias can be ignored).
    """
    weights = profile.facts.weights if profile.facts else ()
    affected = [each for each in weights if each.bias and each.norm in MEAN_REMOVING_NORMS]
    if not affected:
        return
    first, last = affected[0], affected[-1]
    alone = len(affected) == 1
    subject = "1 bias has" if alone else f"{len(affected)} biases have"
    yield Symptom(
        severity="info",
        where=first.bias if alone else f"{first.bias} … {last.bias}",
        message=f"{subject} no effect: the {first.norm} after {'it' if alone else 'each'} subtracts it again",
        action=f"Pass `bias=False` to {_layer(first.bias) if alone else 'the layers before these norms'}.",
        evidence={"biases": float(len(affected))},
    )


def _layer(bias: str) -> str:
    """The module that holds this bias: "layers.0.bias" is in `layers.0`."""
    return f"`{bias.rpartition('.')[0] or bias}`"
