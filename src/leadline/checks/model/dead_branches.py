"""R404: branches that have died out."""

from __future__ import annotations

from collections.abc import Iterator

from leadline.checks._check import Symptom, check
from leadline.checks._examples import each_block, geometric, residual
from leadline.checks._ranges import range_name, spans
from leadline.records import DepthBlock, Profile

DEAD = 1e-10  # branch over skip mean square; ours: 1e-5 of the skip's size, far below any scheme's without its scale
FEWEST = 4  # blocks in a row


@check(
    code="R404",
    name="dead-branches",
    since="0.1.0",
    sick=each_block(geometric(blocks=12), residual=residual(branch_ms=1e-14)),
    healthy=each_block(geometric(blocks=12), residual=residual(branch_ms=1e-12, branch_scale=1e-6)),
)
def dead_branches(profile: Profile) -> Iterator[Symptom]:
    r"""Residual branches add next to nothing, though nobody scaled them down.

    ## What it measures
    The mean square of branch over skip, with a deliberate scale (ReZero, LayerScale, $1/N$) taken out. Fires if it is
    below `DEAD` = 1e-10 in at least `FEWEST` = 4 blocks in a row, but not exactly zero.

    ## Why it hurts
    The signal decays inside the branch (a gain that is too small, several times over). The block is an identity that
    costs full price, and its weights get gradients as small as its output.

    ## When it is wrong
    Branches that start at exactly zero are meant to, and do not fire.

    ## References
    Zhang et al., "Fixup initialization", 2019, section 2.
    """
    for span in spans([_is_dead(block) for block in profile.blocks]):
        count = span[1] - span[0] + 1
        if count >= FEWEST:
            ratio = min(_ratio(profile.blocks[i]) or 0.0 for i in range(span[0], span[1] + 1))
            yield Symptom(
                severity="warning",
                where=range_name(profile, span),
                message=f"{count} residual branches have at most {DEAD:.0e} of their skip's mean square "
                f"(down to {ratio:.2g}), and no scale explains it",
                evidence={"smallest_ratio": ratio, "blocks": float(count)},
                layers=span,
            )


def _is_dead(block: DepthBlock) -> bool:
    ratio = _ratio(block)
    return ratio is not None and 0 < ratio < DEAD


def _ratio(block: DepthBlock) -> float | None:
    found = block.residual
    if found is None or not found.skip_ms or not found.branch_ms or not found.branch_scale:
        return None
    return (found.branch_ms / found.branch_scale**2) / (found.skip_ms / (found.skip_scale or 1.0) ** 2)
