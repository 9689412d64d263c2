"""B206: the gradient stops at the head."""

from __future__ import annotations

from collections.abc import Iterator

from leadline.checks._check import Symptom, check
from leadline.checks._examples import profile_of, stack_with, weight
from leadline.checks._ranges import body
from leadline.records import ModelFacts, Profile
from leadline.text import layer_label
from leadline.tracer.cuts import remedy

# Derived: with a single block before the head, the two cannot be compared.
MIN_BLOCKS = 2


@check(
    code="B206",
    name="head-only-gradient",
    since="0.1.0",
    sick=profile_of([1.0] * 6, [0.0] * 6),
    healthy=stack_with(ModelFacts(weights=(weight(0), weight(1)))),
)
def head_only_gradient(profile: Profile) -> Iterator[Symptom]:
    r"""The gradient at every block before the head is exactly zero.

    ## What it measures
    Whether $\partial L / \partial x$ is exactly zero at the exit of every block except the last, while the head has a
    gradient. It is an error, unless the weight of the head itself starts at zero, which the first step changes.

    ## Why it hurts
    Only the head learns: a linear model on features that never change. Typical reasons are a last activation that is
    dead for every sample, one that is saturated in half precision, or a mask that removes everything.

    ## When it is wrong
    Two linear layers in a row that both start at zero need two steps until a gradient passes, and look the same.

    ## References
    Lu et al., "Dying ReLU and initialization", 2019, section 2.
    """
    weights = profile.facts.weights if profile.facts else ()
    zero_head = any(each.block == len(profile.blocks) - 1 and each.variance == 0 for each in weights)
    if not profile.backward_ran or zero_head:
        return
    for stream in range(len(profile.streams)):
        known = [i for i in body(profile, stream) if profile.blocks[i].backward_ms is not None]
        head = profile.blocks[-1].backward_ms
        if len(known) < MIN_BLOCKS or not head or any(profile.blocks[i].backward_ms for i in known):
            continue
        yield Symptom(
            severity="error",
            where=f"{profile.blocks[known[0]].name} … {profile.blocks[known[-1]].name}",
            message=f"the gradient is exactly zero in all {len(known)} blocks before the head: only the head learns",
            action=_action(profile, layer_label(profile.blocks[known[-1]].name)),
            evidence={"blocks": float(len(known)), "head_grad_ms": head},
            layers=(known[0], known[-1]),
        )


def _action(profile: Profile, last: str) -> str:
    zero = next((cut for cut in profile.cuts if cut.how == "zero"), None)
    if zero is not None:
        return f"{remedy(zero)}."
    return (
        f"Look at the output of {last}: remove a mask that zeroes it, or replace an activation that is zero or "
        "saturated for every sample."
    )
