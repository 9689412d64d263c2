"""R402: a deep post-norm Transformer without scaling."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from leadline.checks._check import Symptom, check
from leadline.checks._examples import each_block, residual, stack_with_step_size
from leadline.checks._steps import step_size_of
from leadline.records import Attention, DepthBlock, Facts, Profile, Rehearsal

FEWEST = 12  # sub-layers: six layers, the depth post-norm was published with (Vaswani et al. 2017)
DEEP = 48  # sub-layers; cited: 24 layers (BERT-large) were trained, 18 + 18 of a translation model were not (Liu 2020)
PROMISE = 0.5  # of the loss a step; calibrated by benchmarks/verdicts: every such network above it got stuck
STARTED = (
    0.1  # of the loss to beat; calibrated by benchmarks/verdicts: every such network that was below got stuck
)
SCALED = 1.2  # a skip scaled by more is DeepNorm or Admin


def _example(promised: float) -> Profile:
    plain = each_block(stack_with_step_size(promised=promised), residual=residual(placement="post"))
    blocks = plain.blocks * 2
    seen = Attention(block=0, module="attn", keys=16, purity=0.1, uniform=1 / 16, logit_var=1.0)
    facts = msgspec.structs.replace(plain.facts or Facts(), attentions=(seen,) * 6)
    return msgspec.structs.replace(plain, blocks=blocks, facts=facts)


@check(
    code="R402",
    name="post-norm-at-depth",
    since="0.1.0",
    refuted_by="learning",
    explains=("F106", "B201", "U501", "U502", "U509", "U503", "U504", "U505", "U523"),
    sick=_example(2.0),
    healthy=_example(0.1),
)
def post_norm_at_depth(profile: Profile) -> Iterator[Symptom]:
    r"""A deep Transformer normalises behind each add, and no skip is scaled for that depth.

    ## What it measures
    The number of post-norm sub-layers with unscaled skips in a network with attention, and what the optimiser's first
    step promises: the change of the loss, if it were linear, over the loss. From `FEWEST` = 12 sub-layers on it fires
    as a warning if that is above `PROMISE` = 0.5, if sixteen steps on the batch got no farther than `STARTED` = 10 %
    below a constant output, or beyond `DEEP` = 48 sub-layers without an optimiser; otherwise it is a note from 24 on.

    ## Why it hurts
    Each norm divides skip and branch by their common size, so what a block reads of the first layers falls as
    $2^{-N/2}$, and one step of all layers moves the output by an amount that grows faster than $N$. The first steps
    push all tokens onto one vector, and no gradient leads back. A warm-up makes these steps small; DeepNorm, Admin or
    pre-norm make them harmless.

    ## When it is wrong
    With a warm-up from a rate near zero post-norm trains to 12 and, with care, 24 layers. The optimiser's present rate
    is what is judged.

    ## References
    Xiong et al., "On layer normalization in the transformer architecture", 2020; Liu et al., "Understanding the
    difficulty of training transformers", 2020; Wang et al., "DeepNet", 2022, figure 4.
    """
    found = [i for i, block in enumerate(profile.blocks) if _is_plain_post(block)]
    attentions = profile.facts.attentions if profile.facts else ()
    if len(found) < FEWEST or not attentions:
        return
    step = step_size_of(profile)
    harsh = step.promised > PROMISE if step is not None else len(found) > DEEP
    harsh = harsh or _stalls(profile.rehearsal)
    if not harsh and len(found) < 2 * FEWEST:
        return
    told = f"; the first step promises {step.promised:.2g} of the loss" if step is not None else ""
    yield Symptom(
        severity="warning" if harsh else "info",
        where=f"{profile.blocks[found[0]].name} … {profile.blocks[found[-1]].name}",
        message=f"{len(found)} post-norm sub-layers without DeepNorm's or Admin's scales{told}: warm up from a small "
        "rate, scale the skips, or put norms before the branches",
        evidence={"sublayers": float(len(found))}
        | ({} if step is None else {"promised_share": step.promised}),
        layers=(found[0], found[-1]),
    )


def _stalls(seen: Rehearsal | None) -> bool:
    progress = None if seen is None else seen.progress
    return progress is not None and progress < STARTED


def _is_plain_post(block: DepthBlock) -> bool:
    found = block.residual
    if found is None or found.placement != "post":
        return False
    return (found.skip_scale or 1.0) / (
        found.branch_scale or 1.0
    ) < SCALED  # a norm behind sees their ratio only
