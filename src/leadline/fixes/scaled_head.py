"""The fix scaled-head: a first loss near the loss of guessing."""

from __future__ import annotations

import math
from collections.abc import Iterator

from leadline.fixes._engine.edit_builders import scale_edit
from leadline.fixes._engine.fix import FixContext, Plan, fix
from leadline.fixes._engine.lookup import head_parameters, is_fresh

# Derived: logits of unit mean square start a cross entropy at ln C + 1/2.
TARGET_LOGIT_MS = 1.0

# Heuristic: four times the target adds 2 to the first loss; less is soon learned.
MAX_LOGIT_MS = 4.0


@fix(name="scaled-head", answers=("I308", "U523", "U50", "B202", "F101"), reach="init", since="0.1.0")
def scaled_head(context: FixContext) -> Iterator[Plan]:
    r"""Scales the weights of the last layer so that the first logits have unit size.

    ## What it does
    Multiplies the weight and bias of the head by one number, so that the mean square of the logits becomes 1. A head
    that is tied to the embedding scales the embedding too.

    ## Why it works
    Logits of size $s$ start a cross entropy about $s^2/2$ above that of guessing. The softmaxes are saturated, and the
    first gradients are spent on undoing that.

    ## What it costs
    Nothing in a fresh model. It is not proposed once training has begun.

    ## When it does not help
    If the logits are large because the stream before the head has exploded: repair that.

    ## References
    Karpathy, "A recipe for training neural networks", 2019 (verify the loss at init).
    """
    head = context.profile.facts.head if context.profile.facts else None
    names = head_parameters(context)
    if head is None or head.logit_ms is None or not is_fresh(context):
        return
    trainable = {each.name for each in context.trace.parameters if each.trainable}
    if not MAX_LOGIT_MS < head.logit_ms < math.inf or not names or not trainable.issuperset(names):
        return
    factor = math.sqrt(TARGET_LOGIT_MS / head.logit_ms)
    edits = tuple(scale_edit(name, factor) for name in names)
    yield Plan(title=f"head scaled by {factor:.3g}: logits of unit size", edits=edits, promise=0.6)
