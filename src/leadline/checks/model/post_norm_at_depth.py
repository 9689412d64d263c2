"""R402: a deep post-norm Transformer whose skips are not scaled for its depth."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from leadline.checks._check import Symptom, check
from leadline.checks._examples import each_block, residual, stack_with_step_size
from leadline.checks._laws import MIN_DELIBERATE_SCALE
from leadline.checks._steps import step_size_of
from leadline.records import Attention, DepthBlock, ModelFacts, Profile, Rehearsal

# Cited: sub-layers. Post-norm was published with six layers (Vaswani et al. 2017).
MIN_SUBLAYERS = 12
# Cited: sub-layers. 24 layers (BERT-large) were trained, 18 + 18 of a translation model were not (Liu 2020).
MAX_SUBLAYERS_WITHOUT_OPTIMIZER = 48
# Calibrated by benchmarks/verdicts: predicted decrease over the loss; every such network above it got stuck.
MAX_PREDICTED_DECREASE = 0.5
# Calibrated by benchmarks/verdicts: progress over the loss to beat; every such network below it got stuck.
MIN_PROGRESS = 0.1


def _example(predicted_decrease: float) -> Profile:
    plain = each_block(
        stack_with_step_size(predicted_decrease=predicted_decrease), residual=residual(placement="post")
    )
    blocks = plain.blocks * 2
    attention = Attention(block=0, module="attn", keys=16, purity=0.1, uniform=1 / 16, logit_var=1.0)
    facts = msgspec.structs.replace(plain.facts or ModelFacts(), attentions=(attention,) * 6)
    return msgspec.structs.replace(plain, blocks=blocks, facts=facts)


@check(
    code="R402",
    name="post-norm-at-depth",
    since="0.1.0",
    refuted_by="learning",
    explains=("F106", "B201", "U501", "U502", "U509", "U503", "U504", "U505", "U523", "U525"),
    sick=_example(2.0),
    healthy=_example(0.1),
)
def post_norm_at_depth(profile: Profile) -> Iterator[Symptom]:
    r"""A deep Transformer normalizes after each add, and no skip is scaled for that depth.

    ## What it measures
    The number of post-norm sub-layers with unscaled skips in a network with attention, and the predicted decrease of
    the first step: the change of the loss, if it were linear, over the loss. From `MIN_SUBLAYERS` = 12 on it is a
    warning in three cases: the predicted decrease is above `MAX_PREDICTED_DECREASE` = 0.5; sixteen steps on the batch
    get less than `MIN_PROGRESS` = 10 % below the loss of a constant output; no optimizer is given and there are more
    than `MAX_SUBLAYERS_WITHOUT_OPTIMIZER` = 48 sub-layers. Otherwise it is a note from twice `MIN_SUBLAYERS` on.

    ## Why it hurts
    Each norm divides skip and branch by their common size, so the part of the first layers in the stream falls as
    $2^{-N/2}$, and one step of all layers moves the output by an amount that grows faster than $N$. The first steps
    push all tokens onto one vector, and no gradient leads back. A warm-up makes these steps small; DeepNorm, Admin or
    pre-norm make them harmless.

    ## When it is wrong
    With a warm-up from a learning rate near zero, post-norm trains with 12 and, with care, 24 layers. The check judges
    the present learning rate.

    ## References
    Xiong et al., "On layer normalization in the transformer architecture", 2020; Liu et al., "Understanding the
    difficulty of training transformers", 2020; Wang et al., "DeepNet", 2022, figure 4.
    """
    sublayers = [i for i, block in enumerate(profile.blocks) if _is_unscaled_post_norm(block)]
    attentions = profile.facts.attentions if profile.facts else ()
    if len(sublayers) < MIN_SUBLAYERS or not attentions:
        return
    step = step_size_of(profile)
    if step is not None:
        harmful = step.predicted_decrease > MAX_PREDICTED_DECREASE
    else:
        harmful = len(sublayers) > MAX_SUBLAYERS_WITHOUT_OPTIMIZER
    harmful = harmful or _stalls(profile.rehearsal)
    if not harmful and len(sublayers) < 2 * MIN_SUBLAYERS:
        return
    first_step = (
        f": the first step is predicted to lower the loss by {step.predicted_decrease:.2g} times its value"
        if step is not None
        else ""
    )
    yield Symptom(
        severity="warning" if harmful else "info",
        where=f"{profile.blocks[sublayers[0]].name} … {profile.blocks[sublayers[-1]].name}",
        message=f"{len(sublayers)} post-norm sub-layers have unscaled skips{first_step}",
        action=f"Put the norms before the branches (`norm_first=True`), or multiply each skip by DeepNorm's alpha = "
        f"{len(sublayers) ** 0.25:.2g}.",
        evidence={"sublayers": float(len(sublayers))}
        | ({} if step is None else {"promised_share": step.predicted_decrease}),
        layers=(sublayers[0], sublayers[-1]),
    )


def _stalls(rehearsal: Rehearsal | None) -> bool:
    progress = None if rehearsal is None else rehearsal.beginning.progress
    return progress is not None and progress < MIN_PROGRESS


def _is_unscaled_post_norm(block: DepthBlock) -> bool:
    """Only the ratio of both scales counts, because a norm follows the add."""
    residual = block.residual
    if residual is None or residual.placement != "post":
        return False
    return (residual.skip_scale or 1.0) / (residual.branch_scale or 1.0) < MIN_DELIBERATE_SCALE
