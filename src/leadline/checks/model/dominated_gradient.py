"""B204: one block gets nearly all of the gradient."""

from __future__ import annotations

from collections.abc import Iterator

from leadline.checks._check import Symptom, check
from leadline.checks._examples import stack_with, weight
from leadline.checks._laws import MIN_COMPARED_BLOCKS
from leadline.records import ModelFacts, Profile, Weight
from leadline.text import layer_label

# Heuristic: share of the squared gradient of all matrices except those of the first block and the head.
MAX_SHARE = 0.99


@check(
    code="B204",
    name="dominated-gradient",
    since="0.1.0",
    sick=stack_with(
        ModelFacts(weights=tuple(weight(i, grad_ms=1e4 if i == 5 else 1.0) for i in range(12))), blocks=14
    ),
    healthy=stack_with(ModelFacts(weights=tuple(weight(i, grad_ms=1.0 + i) for i in range(12))), blocks=14),
)
def dominated_gradient(profile: Profile) -> Iterator[Symptom]:
    r"""One block has nearly all of the squared gradient of the network's matrices.

    ## What it measures
    $\|\partial L / \partial W\|^2$ summed over the matrices of each block except the first and the head, and the share
    of the largest. Fires as a note above `MAX_SHARE` = 99 % if at least `MIN_COMPARED_BLOCKS` = 8 blocks get a
    gradient.

    ## Why it hurts
    This one block sets a global clipping threshold and, for SGD, the learning rate. The others hardly move.

    ## When it is wrong
    Optimizers that rescale each parameter are not affected. Networks that start with zeros (ReZero, Fixup) give all of
    their first gradient to a few parameters; blocks whose gradient is exactly zero are not counted.

    ## References
    Brock et al., "High-performance large-scale image recognition without normalization", 2021, section 4 (unit-wise
    clipping, for this reason).
    """
    power: dict[int, float] = {}
    for each in profile.facts.weights if profile.facts else ():
        if 0 < each.block < len(profile.blocks) - 1 and each.grad_ms:
            power[each.block] = power.get(each.block, 0.0) + each.grad_ms * _size(each)
    total = sum(power.values())
    if len(power) < MIN_COMPARED_BLOCKS or not 0 < total < float("inf"):
        return
    block = max(power, key=power.__getitem__)
    share = power[block] / total
    if share > MAX_SHARE:
        name = profile.blocks[block].name
        yield Symptom(
            severity="info",
            where=name,
            message=f"{layer_label(name)} has {100 * share:.2f} % of the squared gradient of {len(power)} blocks",
            action=f"Clip each parameter separately with `leadline.nn.adaptive_clip_`, or lower the initial weights of "
            f"{layer_label(name)}.",
            evidence={"share": share, "blocks": float(len(power))},
            layers=(block, block),
        )


def _size(each: Weight) -> int:
    return each.fan_in * each.fan_out
