"""peri-norm: a norm at both ends of every branch."""

from __future__ import annotations

from collections.abc import Iterator

from leadline.fixes._engine.branches import branches, norm_edit
from leadline.fixes._engine.fix import Patient, Plan, fix
from leadline.fixes._engine.lookup import is_fresh
from leadline.fixes.declone import copy_edits
from leadline.fixes.pre_norm import pre_edits
from leadline.readings.limits import MIN_STACK_LAYERS

DIFF = """\
-        x = x + self.attention(self.norm1(x))
-        x = x + self.feed_forward(self.norm2(x))
+        x = x + self.norm1_out(self.attention(self.norm1(x)))
+        x = x + self.norm2_out(self.feed_forward(self.norm2(x)))
"""


@fix(
    name="peri-norm",
    answers=("R402", "F101", "F105", "F108", "B202", "N70"),
    reach="architecture",
    since="0.2",
)
def peri_norm(patient: Patient) -> Iterator[Plan]:
    r"""Puts a norm behind every branch too, beside the one in front: $x + \mathrm{LN}(f(\mathrm{LN}(x)))$.

    ## What it does
    A forward hook on the module that ends each branch (`o_proj`, `c_proj`, `linear2`) sends its output through a new
    norm of the model's own kind; one more normalises the stream in front of the first block, unless it comes out of a
    norm. A post-norm stack is made pre-norm on the way (see pre-norm).

    ## Why it works
    Every branch adds the same amount whatever its weights do: the stream's second moment grows like the number of
    branches and no faster, and a branch that learns large weights cannot take the stream over.

    ## What it costs
    One more norm a sub-layer, and the size of a branch can no longer be read off its weights. The first branches weigh
    as much as their norm's gain says: in very deep stacks scale them as well (branch-scale).

    ## When it does not help
    If the stream is bounded already, for what it adds is the same for every branch, useful or not.

    ## References
    Kim et al., arXiv 2502.02732 (Peri-LN); Ding et al., arXiv 2105.13290 (Sandwich-LN).
    """
    pre, post = branches(patient, ("pre",)), branches(patient, ("post",))
    found = pre if len(pre) >= len(post) else post
    if len(found) < MIN_STACK_LAYERS or not is_fresh(patient):
        return
    moved, _ = ((), "") if found is pre else pre_edits(patient, post)
    title = f"norms at both ends of {len(found)} branches"
    if not all(each.end for each in found) or (found is post and not moved):
        yield Plan(title=title, code=DIFF, reach="advice")
        return
    norms = [norm_edit(patient, each, each.end) for each in found if each.end]
    first = found[0]
    if first.layer and not first.fed_by_norm:
        norms.insert(0, norm_edit(patient, first, first.layer, on="norm-input"))
    yield Plan(title=title, edits=(*copy_edits(patient), *moved, *norms), promise=0.4)
