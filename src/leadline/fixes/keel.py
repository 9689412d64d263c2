"""The fix keel: post-norm for deep stacks under Adam, with a norm before each branch and a heavy skip."""

from __future__ import annotations

from collections.abc import Iterator

from leadline.fixes._engine.branches import find_branches, norm_edit
from leadline.fixes._engine.edit_builders import scale_output_edit
from leadline.fixes._engine.fix import FixContext, Plan, fix
from leadline.fixes._engine.lookup import family, is_fresh
from leadline.fixes.declone import copy_edits
from leadline.readings.limits import MIN_STACK_LAYERS

CODE = """\
# S is the number of sub-layers of the whole stack: two per block
-        x = self.norm1(x + self.attention(x))
-        x = self.norm2(x + self.feed_forward(x))
+        x = self.norm1(S * x + self.attention(self.norm_attention(x)))
+        x = self.norm2(S * x + self.feed_forward(self.norm_feed_forward(x)))
"""


@fix(
    name="keel",
    answers=("R402", "R405", "U501", "U509", "F106", "B201"),
    reach="architecture",
    since="0.1.0",
)
def keel(context: FixContext) -> Iterator[Plan]:
    r"""Turns a post-norm stack into Keel: $\mathrm{LN}(S x + f(\mathrm{LN}(x)))$ for $S$ sub-layers.

    ## What it does
    The norm after the add ignores a common factor, so $\mathrm{LN}(S x + f)$ is $\mathrm{LN}(x + f/S)$. A forward hook
    on the end of each branch multiplies its output by $1/S$; another one normalizes the input of the branch. The code
    of the model and its norms stay. It works on `nn.TransformerEncoder` and on any stack whose branches begin and end
    in modules (BERT, RoBERTa); for others it shows the lines to change. It is proposed for Adam and similar
    optimizers.

    ## Why it works
    With a skip $S$ times as heavy as the branch, the share of the first layers in the stream stays nearly whole over
    the stack instead of halving at each norm. A step of Adam, whose size does not depend on the size of the gradient,
    then changes the function by the same amount at any depth.

    ## What it costs
    One more norm and one product per sub-layer. The first steps move each branch little.

    ## When it does not help
    With SGD, where a branch scale of $1/S$ also makes the gradient small: DeepNorm suits it better.

    ## References
    Chen and Wei, arXiv 2601.19895, the block equation; the exponent for Adam: `benchmarks/update_exponents.py`.
    """
    branches = find_branches(context, ("post",))
    if len(branches) < MIN_STACK_LAYERS or not is_fresh(context) or family(context) != "adam":
        return
    count = len(branches)
    title = f"Keel on {count} sub-layers: a norm before each branch, skips times {count}"
    if not all(branch.entry and branch.end for branch in branches):
        yield Plan(title=title, code=CODE, reach="advice")
        return
    norms = [norm_edit(context, each, each.entry, action="norm-input") for each in branches if each.entry]
    scales = [scale_output_edit(branch.end, 1 / count) for branch in branches if branch.end]
    yield Plan(title=title, edits=(*copy_edits(context), *norms, *scales), promise=0.65)
