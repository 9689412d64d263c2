"""The fix branch-scale: residual branches scaled so that their sum stays bounded."""

from __future__ import annotations

import math
from collections.abc import Iterator
from statistics import median

from leadline.fixes._engine.edit_builders import scale_edit, scale_output_edit
from leadline.fixes._engine.fix import FixContext, Plan, fix
from leadline.fixes._engine.init_edits import fresh_edits, is_unscaled
from leadline.fixes._engine.lookup import branch_end, family, is_fresh, residual_blocks, weights
from leadline.readings.limits import MIN_STACK_LAYERS
from leadline.records import Edit, Weight

# Heuristic: N times the mean square of a branch over that of its skip. Unit branches scaled by 1/sqrt(N) have 1; the
# margin of 3 allows for the scatter of a single draw.
MAX_SCALED_SHARE = 3.0


@fix(
    name="branch-scale",
    answers=(
        "R401",
        "R405",
        "R406",
        "R411",
        "F101",
        "F105",
        "B202",
        "U501",
        "U502",
        "U503",
        "U504",
        "U509",
        "U521",
        "U523",
        "I308",
        "N70",
        "F107",
    ),
    reach="architecture",
    since="0.1.0",
)
def branch_scale(context: FixContext) -> Iterator[Plan]:
    r"""Multiplies every residual branch by a small number: $1/\sqrt N$, $1/N$, or a learned one.

    ## What it does
    With $N$ residual branches it proposes three plans. *Folded*: the weight and bias of each branch's last linear map
    are multiplied by $1/\sqrt N$; the code of the model and the names of its parameters stay. *Fixed*: a forward hook
    multiplies the output of each branch by $1/\sqrt N$ (SGD) or $1/N$ (Adam). *Learned*: the factor is a scalar
    parameter that starts at zero (SkipInit, ReZero) and joins the optimizer's group without weight decay.

    ## Why it works
    A branch that keeps the size of its input doubles the second moment of the stream, so $N$ branches multiply it by
    $2^N$. With a factor $\epsilon$ on each branch it is $(1+\epsilon^2)^N$, at most $e$ for $\epsilon = 1/\sqrt N$.
    With $\epsilon = N^{-a}$ one step changes the function by a multiple of $N^{1-2a}$ for SGD and $N^{1-a}$ for Adam:
    SGD needs $a = 1/2$, Adam $a = 1$.

    ## What it costs
    Folded: nothing, but only the initial weights shrink; a step of Adam is as large as before. Fixed and learned: one
    product per block. A branch scale of $1/N$ with SGD makes its steps small: raise the learning rate.

    ## When it does not help
    Where a norm after each add rescales the stream (post-norm). Such a stack needs DeepNorm or pre-norm.

    ## References
    De and Smith, arXiv 2002.10444 (SkipInit); Bachlechner et al., arXiv 2003.04887 (ReZero); Dey et al., arXiv
    2505.01618 (1/N for Adam); Zhang et al., arXiv 1901.09321 (Fixup).
    """
    last = _last_weights(context)
    depth = len(residual_blocks(context))
    if depth < MIN_STACK_LAYERS or not last:
        return
    root = 1 / math.sqrt(depth)
    if is_fresh(context) and _are_large(context, last, depth):
        yield _folded_plan(last, depth, root)
    factor, law = (root, "1/sqrt(N)") if family(context) == "sgd" else (1 / depth, "1/N")
    hooks = _hook_edits(context, last, factor, 0)
    if not hooks:
        return
    title = f"{len(hooks)} branches multiplied by {law} = {factor:.3g}"
    yield Plan(title=title, edits=hooks, promise=0.7)
    yield Plan(
        title=f"{len(hooks)} branches multiplied by a learned number that starts at 0",
        edits=_hook_edits(context, last, 0.0, 1),
        promise=0.6,
    )
    if is_fresh(context):
        yield Plan(title=f"{title}, weights drawn anew", edits=(*fresh_edits(context), *hooks), promise=0.5)


def _last_weights(context: FixContext) -> list[Weight]:
    """The last weights of branches that are not scaled down and not normalized after the branch."""
    blocks = context.profile.blocks
    return [
        weight
        for weight in weights(context)
        if weight.last
        and weight.residual
        and 0 <= weight.block < len(blocks)
        and _is_bare(context, weight.block)
        and not weight.norm
    ]


def _is_bare(context: FixContext, block: int) -> bool:
    residual = context.profile.blocks[block].residual
    return residual is not None and residual.placement in ("none", "pre") and is_unscaled(residual)


def _are_large(context: FixContext, last: list[Weight], depth: int) -> bool:
    """Whether branches exceed their share of the stream; if not, their weights have been scaled down already."""
    residuals = [context.profile.blocks[weight.block].residual for weight in last]
    shares = [r.branch_ms / r.skip_ms for r in residuals if r is not None and r.branch_ms and r.skip_ms]
    return not shares or not median(shares) < MAX_SCALED_SHARE / depth


def _folded_plan(last: list[Weight], depth: int, factor: float) -> Plan:
    names = [name for weight in last if weight.trainable for name in (weight.name, weight.bias) if name]
    return Plan(
        title=f"last weights of {len(last)} branches multiplied by 1/sqrt({depth}) = {factor:.3g}",
        edits=tuple(scale_edit(name, factor) for name in names),
        promise=0.6,
        reach="init",
    )


def _hook_edits(context: FixContext, last: list[Weight], factor: float, learned: int) -> tuple[Edit, ...]:
    """A hook for every branch; empty if one of the branches does not end in a module that can be hooked."""
    paths = [branch_end(context, weight) for weight in last]
    if None in paths:
        return ()
    return tuple(scale_output_edit(path, factor, learned=learned) for path in paths if path)
