"""B206: the gradient stops at the head."""

from __future__ import annotations

from collections.abc import Iterator

from leadline.checks._check import Symptom, check
from leadline.checks._examples import profile_of, stack_with, weight
from leadline.checks._ranges import body
from leadline.records import Facts, Profile, Weight

FEWEST = 2  # blocks in front of the head


@check(
    code="B206",
    name="head-only-gradient",
    since="0.1.0",
    sick=profile_of([1.0] * 6, [0.0] * 6),
    healthy=stack_with(Facts(weights=(weight(0), weight(1)))),
)
def head_only_gradient(profile: Profile) -> Iterator[Symptom]:
    r"""The gradient at every block in front of the head is exactly zero.

    ## What it measures
    Whether $\partial L / \partial x$ is exactly zero at the exit of every block but the last, while the head has a
    gradient. Fires as an error, unless the head itself starts at zero (then the next step opens the way).

    ## Why it hurts
    Only the head learns: a linear model on features that never change. Typical reasons are a last activation that is
    dead for every sample, a saturated one in half precision, or a mask that removes everything.

    ## When it is wrong
    Two linear layers in a row that both start at zero open only after two steps, and look the same here.

    ## References
    Lu et al., "Dying ReLU and initialization", 2019, section 2.
    """
    heads = {
        each.name
        for each in _weights(profile)
        if each.block == len(profile.blocks) - 1 and each.variance == 0
    }
    if not profile.backward_ran or heads:
        return
    for stream in range(len(profile.streams)):
        own = body(profile, stream)
        known = [i for i in own if profile.blocks[i].backward_ms is not None]
        alive = profile.blocks[-1].backward_ms
        if len(known) < FEWEST or not alive or any(profile.blocks[i].backward_ms for i in known):
            continue
        yield Symptom(
            severity="error",
            where=f"{profile.blocks[known[0]].name} … {profile.blocks[known[-1]].name}",
            message=f"the gradient is exactly zero in all {len(known)} blocks before the head: only the head learns",
            evidence={"blocks": float(len(known)), "head_grad_ms": alive},
            layers=(known[0], known[-1]),
        )


def _weights(profile: Profile) -> tuple[Weight, ...]:
    return profile.facts.weights if profile.facts else ()
