"""F105: residual branches whose means add up."""

from __future__ import annotations

from collections.abc import Iterator

from leadline.checks._check import Symptom, check
from leadline.checks._examples import each_block, geometric, residual
from leadline.checks._ranges import body
from leadline.records import DepthBlock, Profile

# Heuristic: share of a branch's second moment that is its mean. ReLU has 0.32, SiLU 0.12, a linear map 0.
MAX_BRANCH_MEAN_SHARE = 0.1
# Heuristic: in fewer residual blocks the means do not add up to much.
MIN_BRANCHES = 8
# Derived: from half of the stream's second moment on, the mean outweighs everything that distinguishes samples.
MAX_STREAM_MEAN_SHARE = 0.5


@check(
    code="F105",
    name="coherent-branches",
    since="0.1.0",
    refuted_by="learning",
    explains=("F101", "F106", "B202", "U525"),
    sick=each_block(geometric(blocks=16), residual=residual(branch_mean_share=0.3), mean_share=0.8),
    healthy=each_block(geometric(blocks=16), residual=residual(branch_mean_share=0.01), mean_share=0.0),
)
def coherent_branches(profile: Profile) -> Iterator[Symptom]:
    r"""Residual branches have a non-zero mean, which adds up with depth instead of averaging out.

    ## What it measures
    The share $\bar f^2 / E[f^2]$ of the second moment of each residual branch $f$ that is its mean over all elements,
    and the same share for the stream after the last block. Fires if the first is above `MAX_BRANCH_MEAN_SHARE` = 10 %
    in most of at least `MIN_BRANCHES` = 8 blocks and the second is above `MAX_STREAM_MEAN_SHARE` = 50 %.

    ## Why it hurts
    Independent branches of variance $v$ add up to $N v$, means of the same sign to $(N \bar f)^2$. A scale of
    $1/\sqrt N$ bounds the first sum but not the second. The stream becomes mostly one constant, and
    all samples look alike to the next layers. The usual reason is a branch that ends in an activation.

    ## When it is wrong
    A norm that centers before each branch removes the mean, and the network trains. Its last blocks then have little
    effect.

    ## References
    Gehring et al., "Convolutional sequence to sequence learning", 2017, section 3.4; derived: $E[(\sum f_i)^2] =
    N v + N^2 \bar f^2$ for independent branches.
    """
    for stream in range(len(profile.streams)):
        shares = {i: share for i in body(profile, stream) if (share := _share(profile.blocks[i])) is not None}
        coherent = {i: share for i, share in shares.items() if share > MAX_BRANCH_MEAN_SHARE}
        if len(shares) < MIN_BRANCHES or len(coherent) <= len(shares) / 2:
            continue
        stream_share = profile.blocks[max(shares)].mean_share
        if stream_share is None or stream_share <= MAX_STREAM_MEAN_SHARE:
            continue
        first, last = min(coherent), max(coherent)
        typical = sorted(coherent.values())[len(coherent) // 2]
        yield Symptom(
            severity="warning",
            where=f"{profile.blocks[first].name} … {profile.blocks[last].name}",
            message=f"the mean of the residual branches adds up to {100 * stream_share:.0f} % of the stream's mean "
            f"square over {len(shares)} blocks: it is {100 * typical:.0f} % of the mean square of a branch",
            action="End each residual branch in a linear layer instead of an activation, or put `nn.LayerNorm` at its "
            "end.",
            evidence={"branch_mean_share": typical, "stream_mean_share": stream_share},
            layers=(first, last),
        )


def _share(block: DepthBlock) -> float | None:
    return None if block.residual is None else block.residual.branch_mean_share
