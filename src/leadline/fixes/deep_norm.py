"""The fix deep-norm: post-norm blocks whose skips outweigh their branches more the deeper the stack is."""

from __future__ import annotations

from collections.abc import Iterator

from leadline.fixes._engine.edit_builders import scale_edit, scale_output_edit
from leadline.fixes._engine.fix import FixContext, Plan, fix
from leadline.fixes._engine.lookup import VALUES, branch_end, family, is_fresh, packing_of, weights
from leadline.fixes.declone import copy_edits
from leadline.readings.limits import MIN_STACK_LAYERS
from leadline.records import Edit, Weight


@fix(
    name="deep-norm",
    answers=("R402", "R405", "I305", "U501", "U509", "F106", "B201"),
    reach="architecture",
    since="0.1.0",
)
def deep_norm(context: FixContext) -> Iterator[Plan]:
    r"""Scales the branches of a post-norm stack as DeepNorm does, without a change of its code.

    ## What it does
    DeepNorm is $\mathrm{LN}(\alpha x + f(x))$, which equals $\mathrm{LN}(x + f(x)/\alpha)$. A forward hook on the end
    of each branch multiplies its output by $1/\alpha$, and the weights of the branch except queries and keys are
    multiplied by $\beta$ once. For $S$ sub-layers $\alpha = S^{1/4}$ and $\beta = (4S)^{-1/4}$ with SGD, $\alpha =
    S^{1/2}$ and $\beta = S^{-1/2}$ with Adam.

    ## Why it works
    The norm after each add divides skip and branch alike. With equal weights the share of the first input halves at
    every sub-layer, and one step changes the function more the deeper the stack is. With $\alpha$ on the skip and
    $\beta$ on the branch, that change does not depend on depth.

    ## What it costs
    One product per sub-layer. The first steps move the branches less.

    ## When it does not help
    In pre-norm stacks, which have no norm after the add: scale their branches instead. If a sub-layer does not end in
    a module that can be hooked, change the code.

    ## References
    Wang et al., arXiv 2203.00555, sections 3 and 4; Su, spaces.ac.cn/archives/8978 (the exponents for Adam).
    """
    post_norm = [each for each in weights(context) if each.residual and _is_post_norm(context, each.block)]
    last = [weight for weight in post_norm if weight.last]
    if len(last) < MIN_STACK_LAYERS or not is_fresh(context):
        return
    paths = [branch_end(context, weight) for weight in last]
    if None in paths:
        return
    alpha, beta = deep_norm_scales(len(last), family(context))
    hooks = [scale_output_edit(path, 1 / alpha) for path in paths if path]
    edits = (*copy_edits(context), *_beta_edits(context, post_norm, beta), *hooks)
    title = f"DeepNorm on {len(last)} sub-layers: alpha {alpha:.3g}, beta {beta:.3g}"
    yield Plan(title=title, edits=edits, promise=0.6)


def deep_norm_scales(sublayers: int, family: str) -> tuple[float, float]:
    """DeepNorm's alpha and beta for this number of sub-layers and this family of optimizers."""
    if family == "adam":
        return sublayers**0.5, sublayers**-0.5
    return float(sublayers**0.25), float((4 * sublayers) ** -0.25)


def _is_post_norm(context: FixContext, block: int) -> bool:
    """Whether a norm follows the add, and neither skip nor branch is scaled for depth."""
    blocks = context.profile.blocks
    residual = blocks[block].residual if 0 <= block < len(blocks) else None
    if residual is None or residual.placement != "post":
        return False
    return (residual.branch_scale or 1.0) >= (residual.skip_scale or 1.0)


def _beta_edits(context: FixContext, post_norm: list[Weight], beta: float) -> Iterator[Edit]:
    """Scale values, outputs and both feed-forward matrices; of a packed projection its last third."""
    for weight in post_norm:
        values = packing_of(context.trace, weight.name, VALUES)
        if weight.trainable and (values is not None or weight.role not in ("query", "key")):
            yield scale_edit(weight.name, beta, values)
