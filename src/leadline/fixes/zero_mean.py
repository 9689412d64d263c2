"""The fix zero-mean: residual branches that do not all push the stream in one direction."""

from __future__ import annotations

from collections.abc import Iterator

from leadline.fixes._engine.edit_builders import activation_edit
from leadline.fixes._engine.fix import FixContext, Plan, fix
from leadline.fixes._engine.lookup import is_own_module, residual_blocks
from leadline.records import Edit, Op

ODD_ACTIVATION = "tanh"
"""An odd function of a centered signal has mean zero."""
# Derived: a batch of images is (batch, channels, height, width).
IMAGE_DIMS = 4
"""Dimensions of (batch, channels, height, width): features are at 1."""


@fix(name="zero-mean", answers=("F105", "F101", "B202"), reach="architecture", since="0.1.0")
def zero_mean(context: FixContext) -> Iterator[Plan]:
    r"""Removes the mean of residual branches that end in an activation.

    ## What it does
    Where a branch ends in an activation module, a forward hook subtracts the mean over the features of each position.
    Where it ends in a call in the block's own code, that call is rerouted to tanh, which is odd and therefore has mean
    zero. A cleaner change, which only you can make, is to end every branch in a linear map.

    ## Why it works
    Branches that end in a ReLU or SiLU have a positive mean. Means add up like $N$, while independent zero-mean
    branches add up like $\sqrt N$: with $x + \epsilon f(x)$ the stream grows like $(1 + c\,\epsilon)^N$ instead of
    $(1 + \epsilon^2)^N$.

    ## What it costs
    One mean and one subtraction per block. Branches can no longer shift all features together.

    ## When it does not help
    If a norm before every branch makes the growth linear anyway.

    ## References
    The growth law: `docs/explanation/theory.md`; measured for blocks that end in Swish: arXiv 2503.14858, appendix.
    """
    candidates = [_final_activation(context, block) for block in residual_blocks(context)]
    ends = [op for op in candidates if op is not None]
    edits: list[Edit] = []
    for op in ends:
        edit = _edit(context, op)
        if edit not in edits:  # blocks may share the module or the code
            edits.append(edit)
    if edits:
        yield Plan(title=f"mean removed from {len(ends)} residual branches", edits=tuple(edits), promise=0.5)


def _final_activation(context: FixContext, block: int) -> Op | None:
    """The activation whose output the block adds, if its branch ends in one."""
    trace, residual = context.trace, context.profile.blocks[block].residual
    add = trace.values[residual.add].op if residual is not None else None
    for number in trace.ops[add].inputs if add is not None else ():
        op = trace.values[number].op
        if op is not None and trace.ops[op].kind == "activation" and trace.ops[op].name != ODD_ACTIVATION:
            return trace.ops[op]
    return None


def _edit(context: FixContext, op: Op) -> Edit:
    if not is_own_module(context, op):
        return activation_edit(op.module, op.name, ODD_ACTIVATION, own_module=False)
    is_image = len(context.trace.values[op.outputs[0]].shape) == IMAGE_DIMS
    return Edit(action="recentre", where=op.module, options={"dim": 1 if is_image else -1})
