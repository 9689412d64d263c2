"""keel: post-norm that goes deep under Adam, with a norm in front of each branch and a heavy skip."""

from __future__ import annotations

from collections.abc import Iterator

from leadline.fixes._engine.branches import branches, norm_edit
from leadline.fixes._engine.edits import rounded
from leadline.fixes._engine.fix import Patient, Plan, fix
from leadline.fixes._engine.lookup import family, is_fresh
from leadline.fixes.declone import copy_edits
from leadline.readings.limits import MIN_STACK_LAYERS
from leadline.records import Edit

DIFF = """\
# S is the number of sub-layers of the whole stack: two a block
-        x = self.norm1(x + self.attention(x))
-        x = self.norm2(x + self.feed_forward(x))
+        x = self.norm1(S * x + self.attention(self.norm_attention(x)))
+        x = self.norm2(S * x + self.feed_forward(self.norm_feed_forward(x)))
"""


@fix(
    name="keel",
    answers=("R402", "R405", "U501", "U509", "F106", "B201"),
    reach="architecture",
    since="0.2",
)
def keel(patient: Patient) -> Iterator[Plan]:
    r"""Turns a post-norm stack into Keel: $\mathrm{LN}(S x + f(\mathrm{LN}(x)))$ for $S$ sub-layers.

    ## What it does
    The norm behind the add does not see a common factor, so $\mathrm{LN}(S x + f)$ is $\mathrm{LN}(x + f/S)$: a
    forward hook on the end of each branch multiplies its output by $1/S$, another one normalises what the branch
    reads. The model's code and norms stay. Works on `nn.TransformerEncoder` and on any stack whose branches begin and
    end in modules (BERT, RoBERTa); for others it shows the lines to change. Proposed for optimisers of Adam's kind.

    ## Why it works
    With the skip $S$ times as heavy as the branch the first layers' share of the stream stays nearly whole over the
    stack instead of falling by half at each norm, and a step of Adam, whose size does not depend on the gradient's,
    moves the function by the same amount at any depth.

    ## What it costs
    One more norm and one product a sub-layer. The first steps move each branch little.

    ## When it does not help
    With SGD a branch scale of $1/S$ makes the gradient small as well: DeepNorm suits it better.

    ## References
    Chen and Wei, arXiv 2601.19895, the block equation; the exponent for Adam: `benchmarks/update_exponents.py`.
    """
    found = branches(patient, ("post",))
    if len(found) < MIN_STACK_LAYERS or not is_fresh(patient) or family(patient) != "adam":
        return
    count = len(found)
    title = f"Keel on {count} sub-layers: a norm before each branch, skips times {count}"
    if not all(each.entry and each.end for each in found):
        yield Plan(title=title, code=DIFF, reach="advice")
        return
    norms = [norm_edit(patient, each, each.entry, on="norm-input") for each in found if each.entry]
    options = {"factor": rounded(1 / count), "learned": 0}
    scales = [Edit(action="scale-output", where=each.end, options={**options}) for each in found if each.end]
    yield Plan(title=title, edits=(*copy_edits(patient), *norms, *scales), promise=0.65)
