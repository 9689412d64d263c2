"""R401: residual branches that are added in full, without norms, at depth."""

from __future__ import annotations

from collections.abc import Iterator

from leadline.checks._check import Symptom, check
from leadline.checks._examples import each_block, geometric, residual
from leadline.checks._laws import forward_laws
from leadline.records import Profile

MOST = 0.5  # of the blocks in the range (ours)


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
    ),
    sick=each_block(geometric(blocks=32, forward_gain=2.0), residual=residual()),
    healthy=each_block(geometric(blocks=32, forward_gain=1.03), residual=residual(branch_ms=0.03)),
)
def unscaled_residual_stack(profile: Profile) -> Iterator[Symptom]:
    r"""Residual blocks without norms or scales make the stream grow geometrically.

    ## What it measures
    Where activations grow geometrically with depth (F101): whether most blocks there are residual, with no norm before
    the branch, and skips and branches that are added without a scale.

    ## Why it hurts
    If a branch keeps the size of what it reads, each block multiplies the second moment by two: $2^N$. With a scale of
    $1/\sqrt N$ on the branches it is $(1 + 1/N)^N < e$; with ReZero or SkipInit it is 1 at first. A norm in front of
    the branch makes the growth linear.

    ## When it is wrong
    It names a cause; whether the growth is too large is judged by F101.

    ## References
    De and Smith, "Batch normalization biases residual blocks towards the identity function", 2020, section 2; Zhang et
    al., "Fixup initialization", 2019, section 2.
    """
    for law in forward_laws(profile):
        span = range(law.layers[0], law.layers[1] + 1)
        found = [r for i in span if (r := profile.blocks[i].residual) is not None and r.placement == "none"]
        plain = [r for r in found if (r.branch_scale or 0.0) > 0.5]
        if law.change > 0 and len(plain) > MOST * len(span):
            yield Symptom(
                severity="info" if law.severity == "info" else "warning",
                where=law.where,
                message=f"{len(plain)} residual blocks add their branches without a scale or a norm: the mean square "
                f"grows {law.gain:.3g}x a block; 1/sqrt(N) on the branches would keep it below e in all",
                evidence=law.evidence(),
                layers=law.layers,
            )
