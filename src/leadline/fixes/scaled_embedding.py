"""The fix scaled-embedding: a stream of unit size."""

from __future__ import annotations

import math
from collections.abc import Iterator

from leadline.fixes._engine.fix import FixContext, Plan, fix
from leadline.fixes._engine.lookup import is_fresh
from leadline.records import Edit

# Heuristic: a stream within a factor of 2 of unit size needs no change.
MIN_FACTOR = 2.0


@fix(name="scaled-embedding", answers=("F108", "W603", "F101", "B202"), reach="init", since="0.1.0")
def scaled_embedding(context: FixContext) -> Iterator[Plan]:
    r"""Scales embeddings to unit size, so that the stream and the first branch are comparable.

    ## What it does
    Multiplies every embedding table, and every parameter that is added to it, so that the stream that enters the first
    block has a mean square of 1.

    ## Why it works
    A stream much smaller than the first branch is overwritten by it, and its tokens are lost. One much larger drowns
    all branches, and the stack is the identity for thousands of steps.

    ## What it costs
    Nothing in a fresh model. With tied heads the logits change by the same factor.

    ## When it does not help
    If the embedding has already been trained.

    ## References
    Takase et al., "Spike no more", arXiv 2312.16903, section 4.
    """
    stream_ms = _entering_ms(context)
    if stream_ms is None or not is_fresh(context):
        return
    factor = float(f"{1 / math.sqrt(stream_ms):.3g}")
    names = [each.name for each in context.trace.parameters if _embeds(context, each.name) and each.trainable]
    edits = tuple(Edit(action="scale", where=name, options={"factor": factor}) for name in names)
    if edits and not 1 / MIN_FACTOR < factor < MIN_FACTOR:
        yield Plan(title=f"embeddings scaled by {factor:.3g} to unit size", edits=edits, promise=0.8)


def _entering_ms(context: FixContext) -> float | None:
    """Mean square of the stream before the first residual block."""
    for i, block in enumerate(context.profile.blocks):
        if block.residual is not None:
            before = context.profile.blocks[i - 1].forward_ms if i else None
            return before or block.residual.skip_ms
    return None


def _embeds(context: FixContext, name: str) -> bool:
    """Whether the parameter is an embedding table, or is used before the first residual block."""
    first = next((i for i, block in enumerate(context.profile.blocks) if block.residual is not None), 0)
    kinds = {each.name: each.kind for each in context.trace.parameters}
    is_early = any(name in block.params for block in context.profile.blocks[:first])
    return kinds[name] == "embedding" or (is_early and kinds[name] != "norm")
