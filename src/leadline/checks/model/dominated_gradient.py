"""B204: one block gets nearly all of the gradient."""

from __future__ import annotations

from collections.abc import Iterator

from leadline.checks._check import Symptom, check
from leadline.checks._examples import stack_with, weight
from leadline.records import Facts, Profile, Weight

FEWEST = 8  # blocks; ours: among few, one may well have most
DOMINATED = 0.99  # of the squared gradient of all matrices but the head's and the first (ours)


@check(
    code="B204",
    name="dominated-gradient",
    since="0.1.0",
    sick=stack_with(
        Facts(weights=tuple(weight(i, grad_ms=1e4 if i == 5 else 1.0) for i in range(12))), blocks=14
    ),
    healthy=stack_with(Facts(weights=tuple(weight(i, grad_ms=1.0 + i) for i in range(12))), blocks=14),
)
def dominated_gradient(profile: Profile) -> Iterator[Symptom]:
    r"""One block holds nearly all of the squared gradient of the network's matrices.

    ## What it measures
    $\|\partial L / \partial W\|^2$ summed over the matrices of each block but the first and the head, and the share of
    the largest. Fires as a note above `DOMINATED` = 99 % of at least `FEWEST` = 8 blocks that get a gradient.

    ## Why it hurts
    A global clipping threshold and, for SGD, the rate are set by that one block; the others stand still.

    ## When it is wrong
    Optimisers that rescale each parameter do not mind. Networks that start with zeros (ReZero, Fixup) give all of
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
    if len(power) < FEWEST or not 0 < total < float("inf"):
        return
    block = max(power, key=power.__getitem__)
    share = power[block] / total
    if share > DOMINATED:
        yield Symptom(
            severity="info",
            where=profile.blocks[block].name,
            message=f"{100 * share:.2f} % of the squared gradient of {len(power)} blocks belongs to this one",
            evidence={"share": share, "blocks": float(len(power))},
            layers=(block, block),
        )


def _size(each: Weight) -> int:
    return each.fan_in * each.fan_out
