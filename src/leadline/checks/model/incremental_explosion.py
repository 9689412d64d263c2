"""U501: the steps of many blocks add up to one step that is too long."""

from __future__ import annotations

from collections.abc import Iterator

from leadline.checks._check import Symptom, check
from leadline.checks._examples import stack_with_update
from leadline.checks._steps import (
    long_step_severity,
    lower_rate_action,
    rate_over_safe_rate,
    share_of_repeated_blocks,
    step_evidence,
)
from leadline.records import Profile


@check(
    code="U501",
    name="incremental-explosion",
    since="0.1.0",
    refuted_by="falling",
    explains=("U504", "U509"),
    sick=stack_with_update(shares=[1 / 64] * 64, safe_lr=1e-5, measured_loss_change=0.8, ratio=-8.0),
    healthy=stack_with_update(shares=[1 / 64] * 64),
)
def incremental_explosion(profile: Profile) -> Iterator[Symptom]:
    r"""The steps of many blocks are each fine, but together change the function too much.

    ## What it measures
    One real step of the optimizer. The gradient predicts a change of the loss of $\langle g, \Delta\theta \rangle$; the
    safe rate is the one at which the measured change differs from it by half. The check fires if all of this holds:
    the user's rate exceeds a multiple of the safe rate (`MAX_RATE_RATIO`: 10 for steps linear in the gradient such as
    SGD, 64 for steps independent of its scale such as Adam), the step as made does not lower the loss, at least
    half of the predicted change comes from eight or more repeated blocks, and no single block has more than half of it.

    ## Why it hurts
    At a given rate each of $N$ blocks adds its part to the change of the function: $\sum_\ell \lVert g_\ell \rVert^2$
    grows like $N$ in a plain network and in a residual network with unscaled branches. The gradient is right and the
    step of every layer is reasonable. Only their sum leaves the region in which the gradient describes the loss, so
    the gradients look healthy and the loss jumps anyway.

    ## When it is wrong
    The check judges the first steps at the present learning rate. It cannot see a warm-up, which makes these steps
    shorter; pass the optimizer with the rate of its first step to have that judged. Adam's first step is its largest:
    every entry moves by the full rate.

    ## References
    Wang et al., "DeepNet: scaling Transformers to 1,000 layers", 2022, section 3 (exploding model update); Su,
    "Why residual connections", archives/8994.
    """
    update = profile.update
    severity = long_step_severity(update)
    share = share_of_repeated_blocks(profile)
    if update is None or severity is None or share is None:
        return
    blocks = [block for block in update.blocks if block.repeated]
    yield Symptom(
        severity=severity,
        where=f"{blocks[0].name} … {blocks[-1].name}",
        message=f"the learning rate {update.lr:.3g} is {rate_over_safe_rate(update):.3g} times the safe rate, "
        f"because the changes of {len(blocks)} blocks add up",
        action=lower_rate_action(
            update,
            otherwise=f"multiply each residual branch by 1/sqrt({len(blocks)}) = {len(blocks) ** -0.5:.2g}",
        ),
        evidence={**step_evidence(update), "blocks": float(len(blocks)), "share": share},
    )
