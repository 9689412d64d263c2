"""The fix pre-norm: norms before the branches instead of after the adds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from leadline.fixes._engine.branches import Branch, find_branches, norm_edit
from leadline.fixes._engine.fix import FixContext, Plan, fix
from leadline.fixes._engine.lookup import is_fresh, modules_of
from leadline.fixes.declone import copy_edits
from leadline.readings.limits import MIN_STACK_LAYERS
from leadline.records import Edit

if TYPE_CHECKING:  # torch-free start
    from torch import nn

CODE = """\
-        x = self.norm1(x + self.attention(x))
-        x = self.norm2(x + self.feed_forward(x))
+        x = x + self.attention(self.norm1(x))
+        x = x + self.feed_forward(self.norm2(x))
# and one more norm after the last block:
+        x = self.final_norm(x)
"""


@fix(
    name="pre-norm",
    answers=("R402", "R403", "F106", "U501", "U509", "U504", "I303"),
    reach="architecture",
    since="0.1.0",
)
def pre_norm(context: FixContext) -> Iterator[Plan]:
    r"""Moves the norms of a post-norm stack before its branches.

    ## What it does
    It sets `norm_first=True` on every layer of `nn.TransformerEncoder` and `nn.TransformerDecoder`, and adds the final
    norm that a pre-norm stack needs. In other stacks whose norms after the adds are modules (BERT, RoBERTa), a hook
    normalizes the input of each branch and the norms after the adds become identities, except the last one, which is
    the final norm. Layers that are deep copies of each other are drawn separately (see declone). Where the norms are
    not modules, it shows the change to make in the code.

    ## Why it works
    A norm after the add also divides the skip: the share of the first block in the stream halves at every block,
    gradients to it shrink, and early updates are amplified with depth. A norm before the branch leaves the skip
    untouched.

    ## What it costs
    Later branches of a pre-norm stack weigh less and less in the growing stream; converged post-norm models of moderate
    depth can be slightly better. Trained weights are useless in the new wiring.

    ## When it does not help
    If the stack is shallow: post-norm with warm-up is fine there.

    ## References
    Xiong et al., arXiv 2002.04745; Wang et al., arXiv 2203.00555 (DeepNorm, for those who want to stay post-norm).
    """
    branches = find_branches(context, ("post",))
    if not is_fresh(context):
        return
    edits, title = pre_norm_edits(context, branches)
    if edits:
        yield Plan(title=title, edits=(*copy_edits(context), *edits), promise=0.8)
    elif context.findings(("R402",)) and not _torch_layers(context):
        yield Plan(
            title="norms moved before the branches, and one more norm after the last block",
            code=CODE,
            reach="advice",
        )


def pre_norm_edits(context: FixContext, branches: list[Branch]) -> tuple[tuple[Edit, ...], str]:
    """The edits that make a post-norm stack pre-norm, and their title; empty where the graph does not allow it."""
    layers = [path for path, layer in _torch_layers(context) if not layer.norm_first]
    if layers:
        ends = [Edit(action="final-norm", where=path) for path in _stacks_without_norm(context)]
        title = f"{len(layers)} Transformer layers made pre-norm"
        title += f", {len(ends)} final norm{'s' if len(ends) > 1 else ''} added" if ends else ""
        return (*(Edit(action="norm-first", where=path) for path in layers), *ends), title
    if len(branches) < MIN_STACK_LAYERS or not all(branch.entry and branch.norm for branch in branches):
        return (), ""
    before = [norm_edit(context, each, each.entry, action="norm-input") for each in branches if each.entry]
    after = [branch.norm for branch in branches if branch.norm]
    removed = [Edit(action="swap", where=path, options={"to": "identity"}) for path in after[:-1]]
    title = (
        f"norms of {len(branches)} sub-layers moved before their branches; the last one stays after the stack"
    )
    return (*before, *removed), title


def _torch_layers(context: FixContext) -> list[tuple[str, nn.Module]]:
    from torch import nn  # torch-free start

    return list(modules_of(context, (nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)))


def _stacks_without_norm(context: FixContext) -> Iterator[str]:
    from torch import nn  # torch-free start

    for path, module in modules_of(context, (nn.TransformerEncoder, nn.TransformerDecoder)):
        if module.norm is None:
            yield path
