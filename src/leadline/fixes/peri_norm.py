"""The fix peri-norm: a norm at the input and the output of every branch."""

from __future__ import annotations

from collections.abc import Iterator

from leadline.fixes._engine.branches import find_branches, norm_edit
from leadline.fixes._engine.fix import FixContext, Plan, fix
from leadline.fixes._engine.lookup import is_fresh
from leadline.fixes.declone import copy_edits
from leadline.fixes.pre_norm import pre_norm_edits
from leadline.readings.limits import MIN_STACK_LAYERS
from leadline.records import Edit

CODE = """\
-        x = x + self.attention(self.norm1(x))
-        x = x + self.feed_forward(self.norm2(x))
+        x = x + self.norm1_out(self.attention(self.norm1(x)))
+        x = x + self.norm2_out(self.feed_forward(self.norm2(x)))
"""


@fix(
    name="peri-norm",
    answers=("R402", "F101", "F105", "F108", "B202", "N70"),
    reach="architecture",
    since="0.1.0",
)
def peri_norm(context: FixContext) -> Iterator[Plan]:
    r"""Adds a norm after every branch, in addition to the one before it: $x + \mathrm{LN}(f(\mathrm{LN}(x)))$.

    ## What it does
    A forward hook on the module that ends each branch (`o_proj`, `c_proj`, `linear2`) sends its output through a new
    norm of the kind the model uses. One more norm is placed before the first block, unless its input already comes out
    of a norm. A post-norm stack becomes pre-norm first (see pre-norm).

    ## Why it works
    Every branch adds the same amount for any weights: the second moment of the stream grows like the number of branches
    and no faster, and a branch that learns large weights cannot dominate the stream.

    ## What it costs
    One more norm per sub-layer, and the size of a branch can no longer be read off its weights. The first branches
    weigh as much as the gain of their norm says: in very deep stacks scale them too (branch-scale).

    ## When it does not help
    If the stream is already bounded, because every branch then adds the same amount, useful or not.

    ## References
    Kim et al., arXiv 2502.02732 (Peri-LN); Ding et al., arXiv 2105.13290 (Sandwich-LN).
    """
    pre, post = find_branches(context, ("pre",)), find_branches(context, ("post",))
    is_post_norm = len(post) > len(pre)
    branches = post if is_post_norm else pre
    if len(branches) < MIN_STACK_LAYERS or not is_fresh(context):
        return
    moved: tuple[Edit, ...] = pre_norm_edits(context, post)[0] if is_post_norm else ()
    title = f"norms at both ends of {len(branches)} branches"
    if not all(branch.end for branch in branches) or (is_post_norm and not moved):
        yield Plan(title=title, code=CODE, reach="advice")
        return
    norms = [norm_edit(context, branch, branch.end) for branch in branches if branch.end]
    first = branches[0]
    if first.layer and not first.fed_by_norm:
        norms.insert(0, norm_edit(context, first, first.layer, action="norm-input"))
    yield Plan(title=title, edits=(*copy_edits(context), *moved, *norms), promise=0.4)
