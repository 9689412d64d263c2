"""U533: the steps of low-rank terms are tiny beside the frozen matrices they adapt."""

from __future__ import annotations

from collections.abc import Iterator

from leadline.checks._check import Symptom, check
from leadline.checks._examples import stack_with_update
from leadline.records import LowRankStep, Margin, Profile

# Heuristic: a thousand aligned steps then change W by 1 %; no benchmark calibrates it, so a note.
MIN_RELATIVE_CHANGE = 1e-5


def _example(change: float) -> Profile:
    step = LowRankStep(base="layers.0.weight", rank=256, scale=1 / 16, change=change, base_size=1.0)
    return stack_with_update(low_rank=(step,))


def _margins(profile: Profile) -> Iterator[Margin]:
    change = profile.update.low_rank_change if profile.update else None
    if change is not None:
        yield Margin(quantity="step of s B A over W", value=change, limit=MIN_RELATIVE_CHANGE, side="above")


@check(
    code="U533",
    name="faint-adapter",
    since="0.2.0",
    margins=_margins,
    sick=_example(1e-7),
    healthy=_example(1e-3),
)
def faint_adapter(profile: Profile) -> Iterator[Symptom]:
    r"""Steps of the low-rank terms are tiny beside the frozen matrices they adapt.

    ## What it measures
    Terms $s\,B A$ of two thin matrices that the pass adds to a frozen $W$, found by their ops. One real step of the
    optimizer gives $\lVert s\,\Delta(B A) \rVert_2 / \lVert W \rVert_2$, the ratio of largest singular values. It is a
    note if the median over the terms is below `MIN_RELATIVE_CHANGE` = 1e-5, a limit that no benchmark calibrates: a
    thousand steps in one direction then change the matrix by 1 %.

    ## Why it hurts
    The scale $s = \alpha/r$ falls with the rank, and a rate from full fine-tuning may be too small. With SGD and
    a fixed $\alpha$ the first change of the outputs falls about like $1/r$.

    ## When it is wrong
    A warm-up of your own may have just begun. Tasks that need a tiny change of the weights do learn.

    ## References
    Kalajdzievski, "A rank stabilization scaling factor for fine-tuning with LoRA", 2023, theorem 3.2;
    `tests/readings/test_low_rank.py` measures the powers of the rank.
    """
    update = profile.update
    change = update.low_rank_change if update else None
    if change is None or update is None or not 0 < change < MIN_RELATIVE_CHANGE or not update.lr:
        return
    first = update.low_rank[0]
    rate = update.lr * MIN_RELATIVE_CHANGE / change
    yield Symptom(
        severity="info",
        where=first.base,
        message=f"one step changes the low-rank terms by only {change:.2g} of the frozen matrices they are added to "
        f"(rank {first.rank}, scale {first.scale:.2g})",
        action=f"Raise the learning rate to at least {rate:.2g}, or the scale: alpha / sqrt(rank) instead of alpha / "
        "rank.",
        evidence={"relative_change": change, "scale": first.scale, "rank": float(first.rank)},
    )
