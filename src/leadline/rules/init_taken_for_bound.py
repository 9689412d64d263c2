"""R406: GPT-2's initialisation, taken for a bound on the update."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from leadline.records import Facts, Profile
from leadline.rules.examples import each_block, residual, stack_with, weight
from leadline.rules.rule import Symptom, rule

FEWEST = 24  # sub-layers; ours: below, the growth with depth that the init does not stop is small
NEAR = 1.5  # factor around 1/N within which the last weights count as scaled by depth (ours)


def _example(blocks: int) -> Profile:
    pairs = [
        each
        for i in range(blocks)
        for each in (weight(i, residual=True), weight(i, residual=True, last=True, variance=1 / blocks))
    ]
    return each_block(
        stack_with(Facts(weights=tuple(pairs)), blocks=blocks), residual=residual(placement="pre")
    )


@rule(
    code="R406",
    name="scaled-init-only",
    since="0.1",
    sick=_example(64),
    healthy=_example(8),
)
def scaled_init_only(profile: Profile) -> Iterator[Symptom]:
    r"""Depth is scaled in the initial weights only, which does not bound what a step does.

    ## What it measures
    Pre-norm blocks without scales whose last weights have about one over the number of sub-layers of the variance of
    the other weights in their branches. A note, from `FEWEST` = 24 sub-layers on.

    ## Why it hurts
    Dividing the last weights by $\sqrt{2N}$ keeps the stream's size at initialisation. It does not divide the gradient
    of these weights, nor Adam's step: the change of the function that one step makes still grows in proportion to
    depth. A *multiplier* on the branch, or a rate that falls with depth, bounds both.

    ## When it is wrong
    With a rate that was chosen for this very depth nothing is wrong; the rate just does not carry over to another one.

    ## References
    Radford et al., "Language models are unsupervised multitask learners", 2019, section 2.3; measured: slopes of the
    first update with depth in `benchmarks/update_exponents.py` ("gpt2-init").
    """
    blocks = [
        b for b in profile.blocks if b.residual and b.residual.placement == "pre" and not b.residual.projected
    ]
    scaled = [b for b in blocks if b.residual and (b.residual.branch_scale or 1.0) < 0.9]
    weights = [w for w in (profile.facts.weights if profile.facts else ()) if w.residual]
    last, others = [w.variance for w in weights if w.last], [w.variance for w in weights if not w.last]
    if len(blocks) < FEWEST or scaled or not last or not others or not median(others) > 0:
        return
    ratio = median(last) / median(others)
    if 1 / NEAR < ratio * len(blocks) < NEAR:
        yield Symptom(
            severity="info",
            where=f"{blocks[0].name} … {blocks[-1].name}",
            message=f"the last weights of {len(blocks)} branches are drawn {1 / ratio:.3g} times smaller in variance, "
            "and nothing multiplies the branches: that bounds the stream, not what one step changes",
            evidence={"variance_ratio": ratio, "sublayers": float(len(blocks))},
        )
