"""The fix scale-logits: attention logits get the factor 1/sqrt(d)."""

from __future__ import annotations

from collections.abc import Iterator

from leadline.fixes._engine.fix import FixContext, Plan, fix
from leadline.records import AttentionProduct, Edit


@fix(name="scale-logits", answers=("D921",), reach="architecture", since="0.1.0")
def scale_logits(context: FixContext) -> Iterator[Plan]:
    r"""Multiplies the product of queries and keys by $1/\sqrt d$.

    ## What it does
    In every attention that has no such factor, the result of the product $q \cdot k$ over $d$ features is multiplied by
    $d^{-1/2}$. With `--diff`, the expression in your file is.

    ## Why it works
    The variance of the logits becomes that of one feature, whatever the width of the head, so the softmax starts broad
    and has a gradient.

    ## What it costs
    Nothing. The function of the network changes: a trained model must be trained again.

    ## When it does not help
    If the weights of queries and keys are drawn smaller by this factor, as in T5; then the check is silent.

    ## References
    Vaswani et al., "Attention is all you need", 2017, section 3.2.1.
    """
    if not context.findings(("D921",)) or context.profile.parts is None:
        return
    edits = [
        edit
        for product in context.profile.parts.attentions
        if not product.has_factor
        and not product.is_normalized
        and (edit := _edit(context, product)) is not None
    ]
    if edits:
        yield Plan(title=f"logits of {len(edits)} attentions scaled", edits=tuple(edits), promise=0.9)


def _edit(context: FixContext, product: AttentionProduct) -> Edit | None:
    """The factor on one call, found again by its place among equal calls of its module."""
    if product.op is None:
        return None
    op = context.trace.ops[product.op]
    calls = op.callable.rpartition(".")[2]
    alike = [
        each.index
        for each in context.trace.ops
        if (each.module, each.call, each.callable) == (op.module, op.call, op.callable)
    ]
    is_only_call = all(each.module != op.module or each.call == 0 for each in context.trace.ops)
    if not is_only_call:
        return None  # the module runs several times
    return Edit(
        action="scale-call",
        where=op.module,
        options={"calls": calls, "place": alike.index(op.index), "factor": product.width**-0.5},
    )
