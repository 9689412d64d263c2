"""scaled-attention: attention that starts broad."""

from __future__ import annotations

import math
from collections.abc import Iterator

from leadline.fixes._edits.scale import scale_edit
from leadline.fixes._engine.fix import Patient, Plan, fix
from leadline.fixes._engine.lookup import QUERIES_AND_KEYS, is_fresh, packing_of, weights
from leadline.records import Edit

LOGIT = (
    1.0  # variance of attention logits that is aimed at: keys share a query as n / e of them would (derived)
)


@fix(name="scaled-attention", answers=("F107", "B202", "U523"), reach="init", since="0.2")
def scaled_attention(patient: Patient) -> Iterator[Plan]:
    r"""Scales query and key weights so that attention logits have unit variance.

    ## What it does
    Multiplies the query and the key weights (their rows of a packed projection) by $s^{-1/2}$, $s^2$ the measured
    variance of the logits over the keys, in every attention where $s^2 > 4$.

    ## Why it works
    Beyond $s \approx \sqrt{2 \ln n}$ for $n$ keys a softmax gives everything to one of them: its gradient is zero and
    the choice was made by chance. At $s = 1$ it spreads over about $n/e$.

    ## What it costs
    Nothing in a fresh model. Logits can grow again in training; QK-norm (a norm on queries and keys) bounds them for
    good, and is a change of the attention's own code.

    ## When it does not help
    In a trained model sharp attention may be what it learned.

    ## References
    Henry et al., arXiv 2010.04245 (QK-norm); Dehghani et al., arXiv 2302.05442, section 3.
    """
    if not is_fresh(patient):
        return
    edits = tuple(_attention_edits(patient))
    if edits:
        yield Plan(
            title=f"queries and keys of {len(edits)} projections scaled to unit logits",
            edits=edits,
            promise=0.8,
        )


def _attention_edits(patient: Patient) -> Iterator[Edit]:
    facts = patient.profile.facts
    for seen in facts.attentions if facts else ():
        if seen.logit_var is None or not 4 * LOGIT < seen.logit_var < math.inf:
            continue
        factor = (LOGIT / seen.logit_var) ** 0.25
        for each in weights(patient):
            if each.block == seen.block and each.trainable and _belongs(each.name, seen.module):
                packing = packing_of(patient.trace, each.name, QUERIES_AND_KEYS)
                if packing is not None or each.role in ("query", "key"):
                    yield scale_edit(each.name, factor, packing)


def _belongs(name: str, module: str) -> bool:
    """The parameter is the attention's own, or of the module right around it."""
    around = module.rpartition(".")[0]
    return not module or name.startswith((f"{module}.", f"{around}."))
