"""qk-norm: attention whose logits cannot run away."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

from leadline.fixes._engine.branches import Attending, attentions
from leadline.fixes._engine.fix import Patient, Plan, fix
from leadline.fixes._engine.lookup import own_model
from leadline.nn.qk_norm import Own
from leadline.records import Attention, Edit

HOT = 4.0  # variance of the logits over the keys beyond which few keys share a query (as in scaled-attention)
ONE_KEY = 0.8  # mean purity: one key takes all (as in F107)
DIFF = """\
# in __init__ of the attention; d is the width of a head:
+        self.norm_query, self.norm_key = torch.nn.RMSNorm(d), torch.nn.RMSNorm(d)
# in its forward, where queries and keys are cut into heads (..., d):
+        query, key = self.norm_query(query), self.norm_key(key)
         logits = query @ key.transpose(-2, -1) / d**0.5
"""


@fix(
    name="qk-norm",
    answers=("F107", "B202", "U501", "U502", "U503", "U504", "U509", "U523", "N70"),
    reach="architecture",
    since="0.2",
)
def qk_norm(patient: Patient) -> Iterator[Plan]:
    r"""Normalises queries and keys, head by head, so that attention logits stay bounded for good.

    ## What it does
    Where an attention of the pass has logits of a variance above `HOT` = 4, or gives nearly all to one key, every
    attention gets an `nn.RMSNorm` over the features of a head for its queries, and one for its keys. Projections that
    are modules of their own (`q_proj`, `query`) get a forward hook; `nn.MultiheadAttention`, the attention of
    `leadline.nn` and modules that call `F.scaled_dot_product_attention` on a packed projection (GPT-2, timm) get the
    norms inside. For attention that is spelled out on a packed projection it shows the lines to add.

    ## Why it works
    With queries and keys of unit mean square a logit is at most $\sqrt d$, and its variance is 1 for random
    directions, whatever the projections' weights do: the softmax keeps a slope, and logits cannot grow in training.
    The norms' gains let attention sharpen as far as it is worth it.

    ## What it costs
    Two small norms an attention, and a hook or a patched forward instead of a fused encoder layer in evaluation. A
    trained model computes something else with it.

    ## When it does not help
    If logits are moderate, nothing is proposed: scaling the weights once (scaled-attention) reaches less far and is
    tried first. With rotary positions and a packed projection the norm comes behind the rotation, not before it.

    ## References
    Henry et al., arXiv 2010.04245; Dehghani et al., arXiv 2302.05442, section 3; Wortsman et al., arXiv 2309.14322,
    section 3.1.
    """
    facts = patient.profile.facts
    if not any(_is_hot(each) for each in (facts.attentions if facts else ())):
        return
    found = [each for each in attentions(patient) if not each.normed]
    edits = [_edits(patient, each) for each in found]
    if found and all(edits):
        title = f"queries and keys of {len(found)} attentions normalised head by head"
        yield Plan(title=title, edits=tuple(edit for each in edits for edit in each), promise=0.6)
    elif not found or not any(edits):
        yield Plan(title="queries and keys normalised head by head", code=DIFF, reach="advice")


def _is_hot(seen: Attention) -> bool:
    return seen.purity > ONE_KEY or (seen.logit_var is not None and seen.logit_var > HOT)


def _edits(patient: Patient, each: Attending) -> tuple[Edit, ...]:
    """None where there is nothing to hook: packed and spelled out."""
    module, width = own_model(patient).get_submodule(each.module), {"width": each.head_width}
    if isinstance(module, Own | nn.MultiheadAttention):
        return (Edit(action="qk-norm", where=each.module, options={**width}),)
    if each.projections is not None:
        return tuple(Edit(action="norm-heads", where=path, options={**width}) for path in each.projections)
    return (Edit(action="qk-norm", where=each.module, options={**width}),) if each.fused else ()
