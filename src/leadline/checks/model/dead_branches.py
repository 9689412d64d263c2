"""R404: residual branches that add almost nothing."""

from __future__ import annotations

from collections.abc import Iterator

from leadline.checks._check import Symptom, check
from leadline.checks._examples import each_block, geometric, residual
from leadline.checks._ranges import MIN_NEIGHBORING_BLOCKS, range_name, spans
from leadline.records import DepthBlock, Profile

# Heuristic: mean square of branch over skip. The branch is 1e-5 of the skip in size, far below that of any scheme
# without its scale.
MIN_BRANCH_RATIO = 1e-10


@check(
    code="R404",
    name="dead-branches",
    since="0.1.0",
    sick=each_block(geometric(blocks=12), residual=residual(branch_ms=1e-14)),
    healthy=each_block(geometric(blocks=12), residual=residual(branch_ms=1e-12, branch_scale=1e-6)),
)
def dead_branches(profile: Profile) -> Iterator[Symptom]:
    r"""Residual branches add almost nothing, although no scale makes them small.

    ## What it measures
    The mean square of branch over skip, after division by deliberate scales (ReZero, LayerScale, $1/N$). Fires if it is
    below `MIN_BRANCH_RATIO` = 1e-10 but not exactly zero in at least `MIN_NEIGHBORING_BLOCKS` = 4 blocks in a row.

    ## Why it hurts
    The signal decays inside the branch, because a gain is too small several times over. The block is an identity at
    full cost, and its weights get gradients as small as its output.

    ## When it is wrong
    Branches that start at exactly zero do so on purpose and do not fire.

    ## References
    Zhang et al., "Fixup initialization", 2019, section 2.
    """
    for span in spans([_is_dead(block) for block in profile.blocks]):
        count = span[1] - span[0] + 1
        if count >= MIN_NEIGHBORING_BLOCKS:
            ratio = min(_ratio(profile.blocks[i]) or 0.0 for i in range(span[0], span[1] + 1))
            yield Symptom(
                severity="warning",
                where=range_name(profile, span),
                message=f"{count} residual branches add almost nothing: their mean square is down to {ratio:.2g} of "
                "that of their skips, and no scale explains it",
                action="Initialize the weights inside the branches with `nn.init.kaiming_normal_(layer.weight)`, so "
                "that a branch preserves the size of its input.",
                evidence={"smallest_ratio": ratio, "blocks": float(count)},
                layers=span,
            )


def _is_dead(block: DepthBlock) -> bool:
    ratio = _ratio(block)
    return ratio is not None and 0 < ratio < MIN_BRANCH_RATIO


def _ratio(block: DepthBlock) -> float | None:
    residual = block.residual
    if residual is None or not residual.skip_ms or not residual.branch_ms or not residual.branch_scale:
        return None
    branch = residual.branch_ms / residual.branch_scale**2
    return branch / (residual.skip_ms / (residual.skip_scale or 1.0) ** 2)
