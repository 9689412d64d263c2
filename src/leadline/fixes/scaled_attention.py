"""The fix scaled-attention: attention that starts broad."""

from __future__ import annotations

import math
from collections.abc import Iterator

from leadline.fixes._engine.edit_builders import scale_edit
from leadline.fixes._engine.fix import FixContext, Plan, fix
from leadline.fixes._engine.lookup import (
    MAX_LOGIT_VARIANCE,
    QUERIES_AND_KEYS,
    is_fresh,
    packing_of,
    weights,
)
from leadline.records import Attention, Edit

# Derived: logits of unit variance spread a query over about n / e of n keys.
TARGET_LOGIT_VARIANCE = 1.0


@fix(name="scaled-attention", answers=("F107", "B202", "U523"), reach="init", since="0.1.0")
def scaled_attention(context: FixContext) -> Iterator[Plan]:
    r"""Scales query and key weights so that attention logits have unit variance.

    ## What it does
    Multiplies the query and the key weights (their rows of a packed projection) by $s^{-1/2}$, where $s^2$ is the
    measured variance of the logits over the keys, in every attention with $s^2 > 4$.

    ## Why it works
    Beyond $s \approx \sqrt{2 \ln n}$ for $n$ keys, a softmax gives everything to one of them: its gradient is zero and
    the choice was made by chance. At $s = 1$ it spreads over about $n/e$ keys.

    ## What it costs
    Nothing in a fresh model. Logits can grow again in training; QK-norm (a norm on queries and keys) bounds them
    permanently, but changes the attention itself.

    ## When it does not help
    In a trained model, where sharp attention may be what it learned.

    ## References
    Henry et al., arXiv 2010.04245 (QK-norm); Dehghani et al., arXiv 2302.05442, section 3.
    """
    if not is_fresh(context):
        return
    facts = context.profile.facts
    edits = tuple(
        edit for attention in (facts.attentions if facts else ()) for edit in _scales(context, attention)
    )
    if edits:
        title = f"queries and keys of {len(edits)} projections scaled to unit logits"
        yield Plan(title=title, edits=edits, promise=0.8)


def _scales(context: FixContext, attention: Attention) -> Iterator[Edit]:
    if attention.logit_var is None or not MAX_LOGIT_VARIANCE < attention.logit_var < math.inf:
        return
    factor = (TARGET_LOGIT_VARIANCE / attention.logit_var) ** 0.25
    for weight in weights(context):
        in_block = weight.block == attention.block and weight.trainable
        if not in_block or not _belongs(weight.name, attention.module):
            continue
        packing = packing_of(context.trace, weight.name, QUERIES_AND_KEYS)
        if packing is not None or weight.role in ("query", "key"):
            yield scale_edit(weight.name, factor, packing)


def _belongs(name: str, module: str) -> bool:
    """Whether the parameter belongs to the attention, or to the module directly around it."""
    parent = module.rpartition(".")[0]
    return not module or name.startswith((f"{module}.", f"{parent}."))
