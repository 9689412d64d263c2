"""deep-norm: post-norm blocks whose skips outweigh their branches as depth demands."""

from __future__ import annotations

from collections.abc import Iterator

from leadline.fixes._edits.scale import scale_edit
from leadline.fixes._engine.fix import Patient, Plan, fix
from leadline.fixes._engine.lookup import VALUES, branch_end, family, is_fresh, packing_of, weights
from leadline.fixes.declone import copy_edits
from leadline.readings.limits import MIN_STACK_LAYERS
from leadline.records import Edit, Weight


@fix(
    name="deep-norm",
    answers=("R402", "R405", "I305", "U501", "U509", "F106", "B201"),
    reach="architecture",
    since="0.2",
)
def deep_norm(patient: Patient) -> Iterator[Plan]:
    r"""Scales the branches of any post-norm stack as DeepNorm does, without touching its code.

    ## What it does
    DeepNorm is $\mathrm{LN}(\alpha x + f(x))$, which is the same as $\mathrm{LN}(x + f(x)/\alpha)$: a forward hook on
    the end of each branch multiplies its output by $1/\alpha$, and the branch's weights but queries and keys are
    multiplied by $\beta$ once. For $S$ sub-layers $\alpha = S^{1/4}$ and $\beta = (4S)^{-1/4}$ with SGD, $\alpha =
    S^{1/2}$ and $\beta = S^{-1/2}$ with Adam.

    ## Why it works
    Behind each add the norm divides skip and branch alike. With equal weights the first input's share halves at every
    sub-layer, and one step changes the function more the deeper the stack is. With $\alpha$ on the skip and $\beta$
    on the branch that change is free of depth.

    ## What it costs
    One product a sub-layer. The first steps move the branches less.

    ## When it does not help
    In pre-norm stacks there is nothing behind the adds: scale branches instead. If the sub-layer's end is no module
    that can be hooked, change the code.

    ## References
    Wang et al., arXiv 2203.00555, sections 3 and 4; Su, spaces.ac.cn/archives/8978 (the exponents for Adam).
    """
    found = [each for each in weights(patient) if each.residual and _is_post(patient, each.block)]
    ends = [each for each in found if each.last]
    if len(ends) < MIN_STACK_LAYERS or not is_fresh(patient):
        return
    paths = [branch_end(patient, each) for each in ends]
    if None in paths:
        return
    alpha, beta = scales(len(ends), family(patient))
    hooks = [Edit(action="scale-output", where=p, options=_option(1 / alpha)) for p in paths if p]
    edits = (*copy_edits(patient), *_betas(patient, found, beta), *hooks)
    title = f"DeepNorm on {len(ends)} sub-layers: alpha {alpha:.3g}, beta {beta:.3g}"
    yield Plan(title=title, edits=edits, promise=0.6)


def scales(sublayers: int, kind: str) -> tuple[float, float]:
    """DeepNorm's alpha and beta for so many sub-layers."""
    if kind == "adam":
        return sublayers**0.5, sublayers**-0.5
    return float(sublayers**0.25), float((4 * sublayers) ** -0.25)


def _is_post(patient: Patient, block: int) -> bool:
    """A norm behind the add, and nobody has scaled skip or branch for depth."""
    blocks = patient.profile.blocks
    residual = blocks[block].residual if 0 <= block < len(blocks) else None
    if residual is None or residual.placement != "post":
        return False
    return (residual.branch_scale or 1.0) >= (residual.skip_scale or 1.0)


def _betas(patient: Patient, found: list[Weight], beta: float) -> Iterator[Edit]:
    """Values, outputs and both feed-forward matrices; of a packed projection its last third."""
    for each in found:
        values = packing_of(patient.trace, each.name, VALUES)
        if each.trainable and (values is not None or each.role not in ("query", "key")):
            yield scale_edit(each.name, beta, values)


def _option(factor: float) -> dict[str, bool | int | float | str | tuple[str, ...]]:
    return {"factor": float(f"{factor:.4g}"), "learned": 0}
