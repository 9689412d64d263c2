"""pre-norm: norms before the branches instead of behind the adds."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

from leadline.fixes.declone import copy_edits
from leadline.fixes.fix import Patient, Plan, fix
from leadline.fixes.looking import is_fresh, modules_of
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
    r"""Moves the norms of `nn.TransformerEncoder` and `nn.TransformerDecoder` layers in front of their branches.

    ## What it does
    Sets `norm_first=True` on every layer and adds the final norm that pre-norm stacks need. Layers that are deep
    copies of one get weights of their own on the way. For other post-norm blocks it shows the change to make in their
    code.

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
    layers = [
        (p, m) for p, m in modules_of(patient, (nn.TransformerEncoderLayer, nn.TransformerDecoderLayer))
    ]
    posts = [path for path, layer in layers if not layer.norm_first]
    if posts and is_fresh(patient):
        edits = tuple(Edit(action="norm-first", where=path) for path in posts)
        ends = tuple(Edit(action="final-norm", where=path) for path in _without_norm(patient))
        title = f"{len(posts)} Transformer layers made pre-norm, {len(ends)} final norm added"
        yield Plan(title=title, edits=(*copy_edits(patient), *edits, *ends), promise=0.8)
    elif patient.findings(("R402",)) and not layers:
        yield Plan(
            title="norms moved in front of the branches, one more behind the last block",
            code=DIFF,
            reach="advice",
        )


def _without_norm(patient: Patient) -> Iterator[str]:
    for path, module in modules_of(patient, (nn.TransformerEncoder, nn.TransformerDecoder)):
        if module.norm is None:
            yield path
