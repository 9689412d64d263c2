"""pre-norm: norms before the branches instead of behind the adds."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

from leadline.fixes._engine.branches import Branch, branches, norm_edit
from leadline.fixes._engine.fix import Patient, Plan, fix
from leadline.fixes._engine.lookup import is_fresh, modules_of
from leadline.fixes.declone import copy_edits
from leadline.readings.limits import MIN_STACK_LAYERS
from leadline.records import Edit

DIFF = """\
-        x = self.norm1(x + self.attention(x))
-        x = self.norm2(x + self.feed_forward(x))
+        x = x + self.attention(self.norm1(x))
+        x = x + self.feed_forward(self.norm2(x))
# and one more norm behind the last block:
+        x = self.final_norm(x)
"""


@fix(
    name="pre-norm",
    answers=("R402", "R403", "F106", "U501", "U509", "U504", "I303"),
    reach="architecture",
    since="0.2",
)
def pre_norm(patient: Patient) -> Iterator[Plan]:
    r"""Moves the norms of a post-norm stack in front of its branches.

    ## What it does
    Sets `norm_first=True` on every layer of `nn.TransformerEncoder` and its kin, and adds the final norm that pre-norm
    stacks need. In other stacks whose norms are modules behind the adds (BERT, RoBERTa), a hook normalises what each
    branch reads and the norms behind the adds become identities, but for the last one, which is the final norm. Layers
    that are deep copies of one get weights of their own on the way. Where the norms are no modules it shows the change
    to make in the code.

    ## Why it works
    Behind each add a norm divides the skip too: the first block's share of the stream halves at every block,
    gradients to it shrink, and early updates are amplified with depth. In front of the branch the skip stays
    untouched.

    ## What it costs
    Later branches of a pre-norm stack weigh less and less in its growing stream; converged post-norm models of moderate
    depth can be slightly better. Trained weights mean nothing in the new wiring.

    ## When it does not help
    If the stack is shallow, post-norm with warm-up is fine.

    ## References
    Xiong et al., arXiv 2002.04745; Wang et al., arXiv 2203.00555 (DeepNorm, for those who want to stay post-norm).
    """
    found = branches(patient, ("post",))
    if not is_fresh(patient):
        return
    edits, title = pre_edits(patient, found)
    if edits:
        yield Plan(title=title, edits=(*copy_edits(patient), *edits), promise=0.8)
    elif patient.findings(("R402",)) and not _torch_layers(patient):
        yield Plan(
            title="norms moved in front of the branches, one more behind the last block",
            code=DIFF,
            reach="advice",
        )


def pre_edits(patient: Patient, found: list[Branch]) -> tuple[tuple[Edit, ...], str]:
    """Edits that make a post-norm stack pre-norm, and what they do in words; none where the graph does not allow it."""
    posts = [path for path, layer in _torch_layers(patient) if not layer.norm_first]
    if posts:
        ends = [Edit(action="final-norm", where=path) for path in _without_norm(patient)]
        title = f"{len(posts)} Transformer layers made pre-norm"
        title += f", {len(ends)} final norm{'s' if len(ends) > 1 else ''} added" if ends else ""
        return (*(Edit(action="norm-first", where=path) for path in posts), *ends), title
    if len(found) < MIN_STACK_LAYERS or not all(each.entry and each.norm for each in found):
        return (), ""
    before = [norm_edit(patient, each, each.entry, on="norm-input") for each in found if each.entry]
    behind = [each.norm for each in found if each.norm]
    moved = [Edit(action="swap", where=path, options={"to": "identity"}) for path in behind[:-1]]
    title = f"norms of {len(found)} sub-layers moved in front of their branches, the last one kept behind the stack"
    return (*before, *moved), title


def _torch_layers(patient: Patient) -> list[tuple[str, nn.Module]]:
    return list(modules_of(patient, (nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)))


def _without_norm(patient: Patient) -> Iterator[str]:
    for path, module in modules_of(patient, (nn.TransformerEncoder, nn.TransformerDecoder)):
        if module.norm is None:
            yield path
