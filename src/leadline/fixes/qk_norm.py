"""The fix qk-norm: attention whose logits stay bounded."""

from __future__ import annotations

from collections.abc import Iterator

from leadline.checks._attention import saturated_heads
from leadline.checks.model.attention_collapse import MAX_PURITY
from leadline.fixes._engine.branches import AttentionSite, attention_sites
from leadline.fixes._engine.fix import FixContext, Plan, fix
from leadline.fixes._engine.lookup import MAX_LOGIT_VARIANCE
from leadline.records import Attention, Edit

CODE = """\
# in __init__ of the attention; d is the width of a head:
+        self.norm_query, self.norm_key = torch.nn.RMSNorm(d), torch.nn.RMSNorm(d)
# in its forward, where queries and keys are split into heads (..., d):
+        query, key = self.norm_query(query), self.norm_key(key)
         logits = query @ key.transpose(-2, -1) / d**0.5
"""


@fix(
    name="qk-norm",
    answers=("F107", "B202", "U501", "U502", "U503", "U504", "U509", "U523", "N70"),
    reach="architecture",
    since="0.1.0",
)
def qk_norm(context: FixContext) -> Iterator[Plan]:
    r"""Normalizes queries and keys per head, so that attention logits stay bounded throughout training.

    ## What it does
    If any attention of the pass has logits with a variance above 4, or gives nearly all weight to one key (also in a
    single head with logits above 100), every attention gets an `nn.RMSNorm` over the features of a head for its
    queries, and one for its keys. Projections that are separate modules (`q_proj`, `query`) get a forward hook.
    `nn.MultiheadAttention`, the attention of `leadline.nn` and modules that call `F.scaled_dot_product_attention` on a
    packed projection (GPT-2, timm) get the norms inside. For attention that is written out on a packed projection it
    shows the lines to add.

    ## Why it works
    With queries and keys of unit mean square a logit is at most $\sqrt d$, and its variance is 1 for random directions
    and any weights of the projections: the softmax keeps a slope, and logits cannot grow in training. The gains of the
    norms let attention become as sharp as is useful.

    ## What it costs
    Two small norms per attention, and a hook or a replaced forward instead of a fused encoder layer in evaluation. A
    trained model computes a different function with it.

    ## When it does not help
    If logits are moderate, nothing is proposed. Scaling the weights once (scaled-attention) changes less and is tried
    first. With rotary positions and a packed projection the norm comes after the rotation, not before it.

    ## References
    Henry et al., arXiv 2010.04245; Dehghani et al., arXiv 2302.05442, section 3; Wortsman et al., arXiv 2309.14322,
    section 3.1.
    """
    facts = context.profile.facts
    if not any(_is_sharp(attention) for attention in (facts.attentions if facts else ())):
        return
    sites = [site for site in attention_sites(context) if not site.normed]
    edits = [_site_edits(context, site) for site in sites]
    if sites and all(edits):
        title = f"queries and keys of {len(sites)} attentions normalized per head"
        yield Plan(title=title, edits=tuple(edit for each in edits for edit in each), promise=0.6)
    elif not any(edits):
        yield Plan(title="queries and keys normalized per head", code=CODE, reach="advice")


def _is_sharp(attention: Attention) -> bool:
    if attention.purity > MAX_PURITY or saturated_heads(attention, MAX_PURITY):
        return True
    return attention.logit_var is not None and attention.logit_var > MAX_LOGIT_VARIANCE


def _site_edits(context: FixContext, site: AttentionSite) -> tuple[Edit, ...]:
    """Empty where there is nothing to hook: attention that is written out on a packed projection."""
    from torch import nn  # torch-free start

    from leadline.nn.qk_norm import Own

    module, width = context.model.get_submodule(site.module), site.head_width
    has_own_norms = isinstance(module, Own | nn.MultiheadAttention)
    if site.projections is not None and not has_own_norms:
        return tuple(
            Edit(action="norm-heads", where=path, options={"width": width}) for path in site.projections
        )
    if has_own_norms or site.fused:
        return (Edit(action="qk-norm", where=site.module, options={"width": width}),)
    return ()
