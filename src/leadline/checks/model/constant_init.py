"""I304: a hidden matrix whose entries are all the same."""

from __future__ import annotations

from collections.abc import Iterator

from leadline.checks._check import Symptom, check
from leadline.checks._examples import stack_with, weight
from leadline.records import Facts, Profile, Weight


def _example(**fields: object) -> Profile:
    return stack_with(Facts(weights=(weight(0), weight(1, constant=True, **fields), weight(2))))


@check(
    code="I304",
    name="constant-init",
    since="0.1.0",
    explains=("F104", "B201", "B206", "F102", "F106", "I303"),
    sick=_example(),
    healthy=_example(residual=True, last=True, variance=0.0),
)
def constant_init(profile: Profile) -> Iterator[Symptom]:
    r"""A hidden weight matrix is zero or constant, so that its units are all the same unit.

    ## What it measures
    Trainable matrices on the depth axis whose entries are all one number. A matrix of zeros is let pass where it is
    meant to be one: at the end of a residual branch (Fixup, zero-init residuals), in the head, or beside another path
    (LoRA), also where the branch is not recognised as residual but the gradient is found to pass it on another way.

    ## Why it hurts
    Units with equal weights compute the same, get the same gradient, and stay the same for ever: a layer of any width
    is one unit wide. A zero matrix on the only path lets no gradient through to what lies before it.

    ## When it is wrong
    If dropout or noise acts between two such layers, units drift apart after all, slowly. A fixed kernel that is meant
    to stay constant should not be trainable.

    ## References
    Goodfellow, Bengio and Courville, "Deep learning", 2016, section 8.4 (breaking the symmetry between units).
    """
    found = [each for each in (profile.facts.weights if profile.facts else ()) if _is_sick(each, profile)]
    if not found:
        return
    trained = (
        [each for each in profile.facts.weights if each.trainable and each.block >= 0]
        if profile.facts
        else []
    )
    zero = all(each.variance == 0 for each in found)
    yield Symptom(
        severity="error",
        where=found[0].name if len(found) == 1 else f"{found[0].name} … {found[-1].name}",
        message=f"{len(found)} of {len(trained)} trainable matrices are {'zero' if zero else 'constant'}: "
        + ("no gradient passes them" if zero else "their units are all the same, and stay so"),
        evidence={"matrices": float(len(found)), "trainable": float(len(trained))},
        layers=(min(each.block for each in found), max(each.block for each in found)),
    )


def _is_sick(each: Weight, profile: Profile) -> bool:
    if not each.constant or not each.trainable or each.block < 0 or min(each.fan_in, each.fan_out) < 2:
        return False
    head = each.block == len(profile.blocks) - 1
    if each.variance > 0:
        return not head
    alone = not each.residual and profile.blocks[each.block].weights == 1
    return not head and alone and not _led_around(each.block, profile)


def _led_around(index: int, profile: Profile) -> bool:
    """The block is on one of several ways, and the gradient reaches what lies before it on another."""
    block = profile.blocks[index]
    before = [each for each in profile.blocks[:index] if each.stream == block.stream]
    return block.bypassed and any((each.backward_ms or 0) > 0 for each in before)
