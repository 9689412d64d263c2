"""U501: the steps of many blocks add up to one that is too long."""

from __future__ import annotations

from collections.abc import Iterator

from leadline.checks._check import Symptom, check
from leadline.checks._examples import stepped
from leadline.checks._steps import evidence, excess, promise, spread, too_long
from leadline.records import Profile


@check(
    code="U501",
    name="incremental-explosion",
    since="0.1",
    refuted_by="falling",
    explains=("U504", "U509"),
    sick=stepped(shares=[1 / 64] * 64, safe_lr=1e-5, measured_loss_change=0.8, ratio=-8.0),
    healthy=stepped(shares=[1 / 64] * 64),
)
def incremental_explosion(profile: Profile) -> Iterator[Symptom]:
    r"""Many blocks, each with a step it can bear, together change the function too much.

    ## What it measures
    One real step of the optimiser. The change of the loss that the gradient promises,
    $\langle g, \Delta\theta \rangle$, and the one that is measured part by half at some rate, the safe one. Fires where
    the user's rate is beyond a multiple of it (10 for steps linear in the gradient, 64 for those free of its scale; see
    `BEYOND`), the step as it is made does not lower the loss, at least half of the promise comes from eight or more
    repeated blocks, and no single block has half of it.

    ## Why it hurts
    At a given rate each of $N$ blocks adds its part to the change of the function: $\sum_\ell \lVert g_\ell \rVert^2$
    grows like $N$ in a plain network and in a residual one whose branches are not scaled. The gradient is right and
    every layer's step is reasonable; only their sum leaves the region in which the gradient says anything. Gradients
    then look healthy, and the loss jumps all the same.

    ## When it is wrong
    It is about the first steps. With a warm-up, which cannot be seen from here, they are shorter; pass the optimiser
    with the rate of the first step to see them. Adam's first step is its boldest: every entry moves by the full rate.

    ## References
    Wang et al., "DeepNet: scaling Transformers to 1,000 layers", 2022, section 3 (exploding model update); Su,
    "Why residual connections", archives/8994.
    """
    update = profile.update
    severity = None if update is None else too_long(update)
    part = spread(profile)
    if update is None or severity is None or part is None:
        return
    blocks = [block for block in update.blocks if block.repeated]
    yield Symptom(
        severity=severity,
        where=f"{blocks[0].name} … {blocks[-1].name}",
        message=f"one step {promise(update)}: {len(blocks)} blocks share {part:.0%} of it, and the rate is "
        f"{excess(update):.3g}x what their sum bears; scale the branches with depth, lower the rate or warm up",
        evidence={**evidence(update), "blocks": float(len(blocks)), "share": part},
    )
