"""F105: residual branches whose means add up."""

from __future__ import annotations

from collections.abc import Iterator

from leadline.checks._check import Symptom, check
from leadline.checks._examples import each_block, geometric, residual
from leadline.checks._ranges import body
from leadline.records import DepthBlock, Profile

COHERENT = 0.1  # of a branch's second moment that is its mean; ours: ReLU has 0.32, SiLU 0.12, a linear map 0
DEEP = 8  # residual blocks; ours: before that the mean has had no time to add up
TAKEN = (
    0.5  # of the stream's second moment at the end: the mean outweighs everything that tells samples apart
)


@check(
    code="F105",
    name="coherent-branches",
    since="0.1.0",
    refuted_by="learning",
    explains=("F101", "F106", "B202"),
    sick=each_block(geometric(blocks=16), residual=residual(branch_mean_share=0.3), mean_share=0.8),
    healthy=each_block(geometric(blocks=16), residual=residual(branch_mean_share=0.01), mean_share=0.0),
)
def coherent_branches(profile: Profile) -> Iterator[Symptom]:
    r"""Residual branches have a non-zero mean, which adds up with depth instead of averaging out.

    ## What it measures
    Of each residual branch $f$, the share $\bar f^2 / E[f^2]$ of its second moment that is its mean over all
    elements; and the same share of the stream behind the last block. Fires if the first is above `COHERENT` = 10 % in
    most of at least `DEEP` = 8 blocks and the second above `TAKEN` = 50 %.

    ## Why it hurts
    Independent branches of variance $v$ add up to $N v$; means of the same sign to $(N \bar f)^2$. So a scale of
    $1/\sqrt N$ that would keep zero-mean branches in bounds does not hold these, the stream becomes mostly one
    constant, and all samples look alike to what follows. The usual reason is a branch that ends in an activation.

    ## When it is wrong
    A norm with centring in front of each branch takes the mean out again, and training goes on; the last blocks then
    have little effect.

    ## References
    Gehring et al., "Convolutional sequence to sequence learning", 2017, section 3.4; derived: $E[(\sum f_i)^2] =
    N v + N^2 \bar f^2$ for independent branches.
    """
    for stream in range(len(profile.streams)):
        own = body(profile, stream)
        found = [i for i in own if (share := _share(profile.blocks[i])) is not None and share > COHERENT]
        branches = [i for i in own if _share(profile.blocks[i]) is not None]
        if len(branches) < DEEP or len(found) <= len(branches) / 2:
            continue
        taken = profile.blocks[branches[-1]].mean_share
        if taken is not None and taken > TAKEN:
            shares = sorted(_share(profile.blocks[i]) or 0.0 for i in found)
            yield Symptom(
                severity="warning",
                where=f"{profile.blocks[found[0]].name} … {profile.blocks[found[-1]].name}",
                message=f"branches end with a mean that is {100 * shares[len(shares) // 2]:.0f} % of their mean "
                f"square; over {len(branches)} blocks it adds up to {100 * taken:.0f} % of the stream",
                evidence={"branch_mean_share": shares[len(shares) // 2], "stream_mean_share": taken},
                layers=(found[0], found[-1]),
            )


def _share(block: DepthBlock) -> float | None:
    return None if block.residual is None else block.residual.branch_mean_share
