"""scaled-head: a first loss that is the loss of guessing."""

from __future__ import annotations

import math
from collections.abc import Iterator

from leadline.fixes._edits.scale import scale_edit
from leadline.fixes._engine.fix import Patient, Plan, fix
from leadline.fixes._engine.lookup import head_parameters, is_fresh

HEAD = 1.0  # mean square of the logits that are aimed at: a first loss of ln C + 1/2 (derived)


@fix(name="scaled-head", answers=("I308", "U523", "U50", "B202", "F101"), reach="init", since="0.2")
def scaled_head(patient: Patient) -> Iterator[Plan]:
    r"""Scales the weights of the last layer so that the first logits have unit size.

    ## What it does
    Multiplies the head's weight and bias by one number, so that the mean square of the logits becomes 1. A head that is
    tied to the embedding scales that along.

    ## Why it works
    Logits of size $s$ start a cross entropy about $s^2/2$ above that of guessing, with saturated softmaxes whose
    gradient is first spent on undoing that.

    ## What it costs
    Nothing, in a fresh model. It is not proposed once training has begun.

    ## When it does not help
    If the logits are large because the stream in front of the head has exploded: repair that.

    ## References
    Karpathy, "A recipe for training neural networks", 2019 (verify the loss at init).
    """
    head = patient.profile.facts.head if patient.profile.facts else None
    names = head_parameters(patient)
    if head is None or head.logit_ms is None or not is_fresh(patient):
        return
    trained = {each.name for each in patient.trace.parameters if each.trainable}
    if not 4 * HEAD < head.logit_ms < math.inf or not names or not trained.issuperset(names):
        return
    factor = math.sqrt(HEAD / head.logit_ms)
    edits = tuple(scale_edit(name, factor) for name in names)
    yield Plan(title=f"head scaled by {factor:.3g}: logits of unit size", edits=edits, promise=0.6)
