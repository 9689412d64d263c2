"""scaled-embedding: a stream of unit size."""

from __future__ import annotations

import math
from collections.abc import Iterator

from leadline.fixes._engine.fix import Patient, Plan, fix
from leadline.fixes._engine.lookup import is_fresh
from leadline.records import Edit


@fix(name="scaled-embedding", answers=("F108", "W603", "F101", "B202"), reach="init", since="0.2")
def scaled_embedding(patient: Patient) -> Iterator[Plan]:
    r"""Scales embeddings to unit size, so that stream and first branch are comparable.

    ## What it does
    Multiplies every embedding table, and every parameter that is added to it, so that the stream that enters the
    first block has a mean square of 1.

    ## Why it works
    A stream much smaller than the first branch is overwritten by it, and its tokens are lost; one much larger drowns
    all branches, and the stack is the identity for thousands of steps.

    ## What it costs
    Nothing in a fresh model. With tied heads the logits change by the same factor.

    ## When it does not help
    If the embedding is trained already.

    ## References
    Takase et al., "Spike no more", arXiv 2312.16903, section 4.
    """
    stream = _entering(patient)
    if stream is None or not is_fresh(patient):
        return
    factor = float(f"{1 / math.sqrt(stream):.3g}")
    names = [each.name for each in patient.trace.parameters if _embeds(patient, each.name) and each.trainable]
    edits = tuple(Edit(action="scale", where=name, options={"factor": factor}) for name in names)
    if edits and not 0.5 < factor < 2:
        yield Plan(title=f"embeddings scaled by {factor:.3g} to unit size", edits=edits, promise=0.8)


def _entering(patient: Patient) -> float | None:
    """Mean square of the stream in front of the first residual block."""
    for i, block in enumerate(patient.profile.blocks):
        if block.residual is not None:
            before = patient.profile.blocks[i - 1].forward_ms if i else None
            return before or block.residual.skip_ms
    return None


def _embeds(patient: Patient, name: str) -> bool:
    """A table, or what is used in front of the first residual block."""
    first = next((i for i, block in enumerate(patient.profile.blocks) if block.residual is not None), 0)
    kinds = {each.name: each.kind for each in patient.trace.parameters}
    early = any(name in block.params for block in patient.profile.blocks[:first])
    return kinds[name] == "embedding" or (early and kinds[name] != "norm")
