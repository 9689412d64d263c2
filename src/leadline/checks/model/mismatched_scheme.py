"""R411: branches scaled for one kind of optimiser, trained with the other."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator

from msgspec.structs import replace

from leadline.checks._check import Symptom, check
from leadline.checks._examples import each_block, geometric, residual
from leadline.ops.optimizers import Family, family_of
from leadline.records import Optimizer, ParamGroup, Profile

MIN_BLOCKS = 32  # ours: with fewer, powers 0, 1/2 and 1 of the number of blocks are too close to tell apart
NEAR = 0.15  # ours: a power within this of 1/2 or 1 is that one; a quarter would make the two meet
EVEN = 1.0  # natural logarithm; ours: branches whose ratio to the skip differs more have no common power
RATES: dict[tuple[Family, str], float] = {
    ("adam", "half"): 0.5,
    ("sgd", "one"): -1.0,
}  # derived: docs/explanation/update.md


def _example(power: float, optimizer: str, *, blocks: int = 64) -> Profile:
    scaled = residual(branch_ms=blocks ** (-2 * power), branch_scale=blocks**-power)
    group = ParamGroup(parameters=(), lr=1e-3, weight_decay=0.0, options={})
    stack = each_block(geometric(blocks=blocks), residual=scaled)
    return replace(stack, optimizer=Optimizer(name=optimizer, groups=(group,), steps=0))


@check(
    code="R411",
    name="mismatched-scheme",
    since="0.1.0",
    explains=("U501", "U504"),
    sick=_example(0.5, "AdamW"),
    healthy=_example(1.0, "AdamW"),
)
def mismatched_scheme(profile: Profile) -> Iterator[Symptom]:
    r"""The branches are scaled with depth, but not as this optimiser needs it.

    ## What it measures
    The median ratio of branch to skip over at least `MIN_BLOCKS` = 32 residual blocks, as a power $a$ of their number
    $N$: $\sqrt{q_f / q_x} = N^{-a}$; and the family of the optimiser. A note if $a$ is near 1/2 (DeepNorm,
    $1/\sqrt{N}$) and the optimiser is of Adam's kind, or near 1 (CompleteP, Keel) and it is SGD; unless its groups give
    the blocks a rate of their own.

    ## Why it hurts
    A branch scaled by $N^{-a}$ gets a gradient scaled by $N^{-a}$. Steps linear in the gradient change the function by
    $N \cdot N^{-2a}$: free of depth at $a = 1/2$, ever smaller at $a = 1$ (the blocks stay where they are: lazy).
    Steps free of the gradient's scale change it by $N \cdot N^{-a}$: free of depth at $a = 1$, growing like $\sqrt{N}$
    at $a = 1/2$, so that a rate found on a shallow network is too high for a deep one.

    ## When it is wrong
    At this very depth the rate may be just right; the note is about carrying it to another. One network cannot show
    how its scale was chosen: a constant that happens to be near $N^{-a}$ looks the same. `leadline.forecast` measures
    the law itself.

    ## References
    Wang et al., "DeepNet", 2022, section 4 (derived for SGD); Su, archives/8978 (the exponents for Adam); Yang et al.,
    "Tensor programs VI: feature learning in infinite-depth networks", 2023; Dey et al., "CompleteP", 2025.
    """
    family = None if profile.optimizer is None else family_of(profile.optimizer.name)
    ratios = [math.log(ratio) for ratio in _ratios(profile)]
    if family is None or len(ratios) < MIN_BLOCKS or _own_rates(profile):
        return
    quartiles = statistics.quantiles(ratios, n=4)
    power = -statistics.median(ratios) / math.log(len(ratios))
    kind = "half" if abs(power - 0.5) < NEAR else "one" if abs(power - 1) < NEAR else ""
    growth = RATES.get((family, kind))
    if growth is None or quartiles[2] - quartiles[0] > EVEN:
        return
    cure = "scale branches by 1/N, or the rate by 1/sqrt(N)" if growth > 0 else "scale branches by 1/sqrt(N)"
    yield Symptom(
        severity="info",
        where=f"{len(ratios)} residual blocks",
        message=f"branches are N^-{power:.2f} of their skips over N = {len(ratios)} blocks; with "
        f"{profile.optimizer.name if profile.optimizer else ''} the change by one step then goes like N^{growth:+.1f}: "
        f"{cure}",
        evidence={"power": power, "blocks": float(len(ratios)), "exponent": growth},
    )


def _ratios(profile: Profile) -> Iterator[float]:
    for block in profile.blocks:
        found = block.residual
        if found is not None and not found.projected and found.branch_ms and found.skip_ms:
            ratio = math.sqrt(found.branch_ms / found.skip_ms)
            if 0 < ratio < math.inf:
                yield ratio


def _own_rates(profile: Profile) -> bool:
    """The groups have different rates: somebody has thought about it."""
    groups = profile.optimizer.groups if profile.optimizer else ()
    return len({group.lr for group in groups}) > 1
