"""U532: one step of a low-rank term outweighs the frozen matrix that it adapts."""

from __future__ import annotations

from collections.abc import Iterator

from leadline.checks._check import Symptom, check
from leadline.checks._examples import stack_with_update
from leadline.records import LowRankStep, Margin, Profile

# Heuristic: a change of a third of W per step replaces it within a few steps; no benchmark calibrates it, so a note.
MAX_RELATIVE_CHANGE = 0.3


def _example(change: float) -> Profile:
    step = LowRankStep(base="layers.0.weight", rank=8, scale=2.0, change=change, base_size=1.0)
    return stack_with_update(low_rank=(step,))


def _margins(profile: Profile) -> Iterator[Margin]:
    change = profile.update.low_rank_change if profile.update else None
    if change is not None:
        yield Margin(quantity="step of s B A over W", value=change, limit=MAX_RELATIVE_CHANGE)


@check(
    code="U532",
    name="adapter-overwrites",
    since="0.2.0",
    margins=_margins,
    sick=_example(2.0),
    healthy=_example(0.01),
)
def adapter_overwrites(profile: Profile) -> Iterator[Symptom]:
    r"""One step changes a low-rank term so much that the frozen matrix beside it hardly counts.

    ## What it measures
    Terms $s\,B A$ of two thin matrices that the pass adds to a frozen $W$, as LoRA does, found by their ops. One real
    step of the optimizer gives $\lVert s\,\Delta(B A) \rVert_2 / \lVert W \rVert_2$, the ratio of largest singular
    values. It is a note if the median over the terms is above `MAX_RELATIVE_CHANGE` = 0.3, a limit that no benchmark
    calibrates.

    ## Why it hurts
    The frozen matrix holds what was learned before. A step of comparable size along one direction replaces what the
    layer does to the inputs of the batch, and the next steps have to repair it. The size of the step is the learning
    rate times the scale $s$ (alpha over the rank, or over its root) times the size of $A$: a large alpha does the same
    as a large learning rate. $B = 0$ at the start, so no ratio of a parameter to its own update shows it.

    ## When it is wrong
    A warm-up may start far below the present learning rate. A term that is meant to replace the matrix is no adapter.

    ## References
    Hu et al., "LoRA", 2022, section 4.1; Kalajdzievski, "A rank stabilization scaling factor for fine-tuning with
    LoRA", 2023.
    """
    update = profile.update
    change = update.low_rank_change if update else None
    if change is None or update is None or not change > MAX_RELATIVE_CHANGE:
        return
    worst = max(update.low_rank, key=lambda each: each.relative or 0.0)
    factor = MAX_RELATIVE_CHANGE / change
    rate = f"the learning rate to {update.lr * factor:.2g} or " if update.lr else ""
    yield Symptom(
        severity="info",
        where=worst.base,
        message=f"one step changes the low-rank terms by {change:.3g} times the frozen matrices they are added to "
        f"(rank {worst.rank}, scale {worst.scale:.3g})",
        action=f"Lower {rate}the scale of the terms from {worst.scale:.3g} to {worst.scale * factor:.2g}.",
        evidence={"relative_change": change, "scale": worst.scale, "rank": float(worst.rank)},
    )
