"""R401: deep residual stacks without norms or scales."""

from __future__ import annotations

from collections.abc import Iterator

from leadline.checks._check import Symptom, check
from leadline.checks._examples import each_block, geometric, residual
from leadline.checks._laws import forward_laws
from leadline.records import Profile

# Heuristic: most of the blocks in the range must be of this kind to be the cause of the growth.
MIN_BLOCK_SHARE = 0.5
# Heuristic: a smaller factor on the branch counts as a scale.
MIN_UNSCALED_FACTOR = 0.5


@check(
    code="R401",
    name="unscaled-residual-stack",
    since="0.1.0",
    refuted_by="learning",
    explains=(
        "F101",
        "B202",
        "I308",
        "F107",
        "N701",
        "N703",
        "U501",
        "U502",
        "U509",
        "U503",
        "U504",
        "U505",
        "U521",
        "U523",
        "U525",
    ),
    sick=each_block(geometric(blocks=32, forward_gain=2.0), residual=residual()),
    healthy=each_block(geometric(blocks=32, forward_gain=1.03), residual=residual(branch_ms=0.03)),
)
def unscaled_residual_stack(profile: Profile) -> Iterator[Symptom]:
    r"""Residual blocks without norms or scales make the stream grow geometrically.

    ## What it measures
    Whether, where activations grow geometrically with depth (F101), most blocks are residual without a norm before the
    branch and without a scale on the branch.

    ## Why it hurts
    If a branch preserves the size of its input, each block multiplies the second moment by two: $2^N$. With a scale of
    $1/\sqrt N$ on the branches it is $(1 + 1/N)^N < e$; with ReZero or SkipInit it is 1 at first. A norm before the
    branch makes the growth linear.

    ## When it is wrong
    The check names a cause. F101 judges whether the growth is too large.

    ## References
    De and Smith, "Batch normalization biases residual blocks towards the identity function", 2020, section 2; Zhang et
    al., "Fixup initialization", 2019, section 2.
    """
    for law in forward_laws(profile):
        span = range(law.layers[0], law.layers[1] + 1)
        residuals = [profile.blocks[i].residual for i in span]
        plain = [r for r in residuals if r is not None and r.placement == "none"]
        unscaled = [r for r in plain if (r.branch_scale or 0.0) > MIN_UNSCALED_FACTOR]
        if law.change > 0 and len(unscaled) > MIN_BLOCK_SHARE * len(span):
            yield Symptom(
                severity="info" if law.severity == "info" else "warning",
                where=law.where,
                message=f"{len(unscaled)} residual blocks without norms or scales multiply the signal's mean square by "
                f"{law.gain:.3g} per block",
                action=f"Multiply each branch by 1/sqrt({len(unscaled)}) = {len(unscaled) ** -0.5:.2g}, or put "
                "`nn.LayerNorm` before it.",
                evidence=law.evidence(),
                layers=law.layers,
            )
