"""R411: branches that are scaled for one kind of optimizer and trained with the other."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator

from msgspec.structs import replace

from leadline.checks._check import Symptom, check
from leadline.checks._examples import each_block, geometric, residual
from leadline.ops.optimizers import Family, family_of
from leadline.records import Optimizer, ParamGroup, Profile

# Heuristic: with fewer blocks, the powers 0, 1/2 and 1 of their number are too close to distinguish.
MIN_BLOCKS = 32
# Heuristic: distance from the powers 1/2 and 1; with a quarter the two would meet.
MAX_POWER_DISTANCE = 0.15
# Heuristic: interquartile range of ln(branch / skip); branches that differ more have no common power.
MAX_LOG_SPREAD = 1.0
# Derived in docs/explanation/update.md: exponent of N in the change by one step, by family of optimizer and power of
# the scale.
STEP_EXPONENTS: dict[tuple[Family, float], float] = {("adam", 0.5): 0.5, ("sgd", 1.0): -1.0}


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
    r"""The branches are scaled with depth, but not as this optimizer needs it.

    ## What it measures
    The median ratio of branch to skip over at least `MIN_BLOCKS` = 32 residual blocks, as a power $a$ of their number
    $N$: $\sqrt{q_f / q_x} = N^{-a}$; and the family of the optimizer. It is a note if $a$ is near 1/2 (DeepNorm,
    $1/\sqrt{N}$) and the optimizer is like Adam, or if $a$ is near 1 (CompleteP, Keel) and the optimizer is SGD. It
    does not fire if the parameter groups have different learning rates.

    ## Why it hurts
    A branch scaled by $N^{-a}$ gets a gradient scaled by $N^{-a}$. Steps linear in the gradient change the function by
    $N \cdot N^{-2a}$: independent of depth at $a = 1/2$, ever smaller at $a = 1$ (the blocks hardly move: lazy).
    Steps that do not depend on the gradient's scale change it by $N \cdot N^{-a}$: independent of depth at $a = 1$,
    growing like $\sqrt{N}$ at $a = 1/2$, so that a learning rate found on a shallow network is too high for a deep one.

    ## When it is wrong
    At this depth the learning rate may be right; the note is about using it at another depth. One network cannot show
    how its scale was chosen: a constant that happens to be near $N^{-a}$ looks the same. `leadline.forecast` measures
    the law itself.

    ## References
    Wang et al., "DeepNet", 2022, section 4 (derived for SGD); Su, archives/8978 (the exponents for Adam); Yang et al.,
    "Tensor programs VI: feature learning in infinite-depth networks", 2023; Dey et al., "CompleteP", 2025.
    """
    optimizer = profile.optimizer
    family = None if optimizer is None else family_of(optimizer.name)
    ratios = [math.log(ratio) for ratio in _branch_ratios(profile)]
    if optimizer is None or family is None or len(ratios) < MIN_BLOCKS or _has_several_rates(optimizer):
        return
    quartiles = statistics.quantiles(ratios, n=4)
    power = -statistics.median(ratios) / math.log(len(ratios))
    nearest = next((each for each in (0.5, 1.0) if abs(power - each) < MAX_POWER_DISTANCE), None)
    exponent = None if nearest is None else STEP_EXPONENTS.get((family, nearest))
    if exponent is None or quartiles[2] - quartiles[0] > MAX_LOG_SPREAD:
        return
    yield Symptom(
        severity="info",
        where=f"{len(ratios)} residual blocks",
        message=f"one step of {optimizer.name} changes the function as N^{exponent:+.1f} with depth, at "
        f"N = {len(ratios)} blocks: branches are N^-{power:.2f} of their skips",
        action=_action(len(ratios), exponent),
        evidence={"power": power, "blocks": float(len(ratios)), "exponent": exponent},
    )


def _action(blocks: int, exponent: float) -> str:
    root = f"1/sqrt({blocks}) = {blocks**-0.5:.2g}"
    if exponent > 0:
        return f"Multiply the branches by 1/{blocks} instead of {root}, or the learning rate by {root}."
    return f"Multiply the branches by {root} instead of 1/{blocks}."


def _branch_ratios(profile: Profile) -> Iterator[float]:
    for block in profile.blocks:
        residual = block.residual
        if residual is not None and not residual.projected and residual.branch_ms and residual.skip_ms:
            ratio = math.sqrt(residual.branch_ms / residual.skip_ms)
            if 0 < ratio < math.inf:
                yield ratio


def _has_several_rates(optimizer: Optimizer) -> bool:
    """Whether the groups have different learning rates, which someone chose for a reason."""
    return len({group.lr for group in optimizer.groups}) > 1
