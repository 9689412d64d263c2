"""I304: a hidden matrix whose entries are all equal."""

from __future__ import annotations

from collections.abc import Iterator

from leadline.checks._check import Symptom, check
from leadline.checks._examples import stack_with, weight
from leadline.records import ModelFacts, Profile, Weight


def _example(**fields: object) -> Profile:
    return stack_with(ModelFacts(weights=(weight(0), weight(1, constant=True, **fields), weight(2))))


@check(
    code="I304",
    name="constant-init",
    since="0.1.0",
    refuted_by="learning",
    explains=("F104", "B201", "B206", "F102", "F106", "I303"),
    sick=_example(),
    healthy=_example(residual=True, last=True, variance=0.0),
)
def constant_init(profile: Profile) -> Iterator[Symptom]:
    r"""A hidden weight matrix is zero or constant, so all of its units are the same.

    ## What it measures
    Trainable matrices on the depth axis whose entries are all equal. A matrix of zeros does not fire if it is meant to
    be zero: at the end of a residual branch (Fixup, zero-init residuals), in the head, or next to another path (LoRA).
    The other path also counts if the branch is not recognized as residual but the gradient passes the matrix on it.

    ## Why it hurts
    Units with equal weights compute the same, get the same gradient and stay the same forever: a layer of any width is
    one unit wide. A zero matrix on the only path passes no gradient to the layers before it.

    ## When it is wrong
    Units that read different inputs, or dropout and noise between two such layers, make them different after all. A
    network that learns in the rehearsal in spite of it gets a note. A kernel that is meant to stay
    constant should not be trainable.

    ## References
    Goodfellow, Bengio and Courville, "Deep learning", 2016, section 8.4 (breaking the symmetry between units).
    """
    weights = profile.facts.weights if profile.facts else ()
    affected = [each for each in weights if _is_affected(each, profile)]
    if not affected:
        return
    trainable = [each for each in weights if each.trainable and each.block >= 0]
    zero = all(each.variance == 0 for each in affected)
    count = f"{len(affected)} of {len(trainable)} trainable matrices"
    message = (
        f"no gradient passes {count}: all of their entries are zero"
        if zero
        else f"all units of {count} are the same and stay so: the entries of each matrix are equal"
    )
    yield Symptom(
        severity="error",
        where=affected[0].name if len(affected) == 1 else f"{affected[0].name} … {affected[-1].name}",
        message=message,
        action=f"Initialize {_names(affected)} with random values, for example "
        "`nn.init.kaiming_normal_(layer.weight)`.",
        evidence={"matrices": float(len(affected)), "trainable": float(len(trainable))},
        layers=(min(each.block for each in affected), max(each.block for each in affected)),
    )


def _names(affected: list[Weight]) -> str:
    return f"`{affected[0].name}`" if len(affected) == 1 else "these matrices"


def _is_affected(each: Weight, profile: Profile) -> bool:
    if not each.constant or not each.trainable or each.block < 0 or min(each.fan_in, each.fan_out) < 2:
        return False
    head = each.block == len(profile.blocks) - 1
    if each.variance > 0:
        return not head
    alone = not each.residual and profile.blocks[each.block].weights == 1
    return not head and alone and not _gradient_passes(each.block, profile)


def _gradient_passes(index: int, profile: Profile) -> bool:
    """Whether the block is on one of several paths and the gradient reaches earlier blocks on another one."""
    block = profile.blocks[index]
    before = [each for each in profile.blocks[:index] if each.stream == block.stream]
    return block.bypassed and any((each.backward_ms or 0) > 0 for each in before)
