"""branch-scale: residual branches that add up to a bounded stream."""

from __future__ import annotations

import math
from collections.abc import Iterator
from statistics import median

from leadline.fixes._engine.fix import Patient, Plan, fix
from leadline.fixes._engine.init_edits import fresh_edits
from leadline.fixes._engine.lookup import branch_end, family, is_fresh, residual_blocks, weights
from leadline.readings.limits import MIN_STACK_LAYERS
from leadline.records import Edit, Weight

QUIET = (
    3.0  # mean square of a branch over that of its skip, times N: unit branches times 1/sqrt(N) have 1 (ours)
)
FULL = 0.5  # a branch that is added with more than this is not scaled down yet (as in R401)


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
    since="0.2",
)
def branch_scale(patient: Patient) -> Iterator[Plan]:
    r"""Multiplies every residual branch by a small number: one over the root of their number, one over it, or learned.

    ## What it does
    With $N$ residual branches, three plans. *Folded*: the weight and bias of each branch's last linear map are
    multiplied by $1/\sqrt N$; the model's code and parameters' names stay (new initial weights). *Fixed*: a forward
    hook multiplies the branch's output by $1/\sqrt N$ (SGD) or $1/N$ (Adam). *Learned*: a scalar parameter that
    starts at zero (SkipInit, ReZero) and joins the optimiser's group without decay.

    ## Why it works
    A branch that keeps the size of what it reads doubles the stream's second moment: $2^N$. With $\epsilon$ on each
    it is $(1+\epsilon^2)^N$, at most $e$ for $\epsilon = 1/\sqrt N$. What one step does to the function then grows
    like $N^{1-2a}$ for SGD and $N^{1-a}$ for Adam with $\epsilon = N^{-a}$: SGD wants $a = 1/2$, Adam $a = 1$.

    ## What it costs
    Folded: nothing, but only the initial weights shrink; a step of Adam is as large as before. Fixed and learned: one
    product a block. A branch scale of $1/N$ with SGD makes its steps small: raise the rate.

    ## When it does not help
    Where norms behind each add rescale the stream (post-norm): that wants DeepNorm or pre-norm instead.

    ## References
    De and Smith, arXiv 2002.10444 (SkipInit); Bachlechner et al., arXiv 2003.04887 (ReZero); Dey et al., arXiv
    2505.01618 (1/N for Adam); Zhang et al., arXiv 1901.09321 (Fixup).
    """
    last = _last_weights(patient)
    depth = len(residual_blocks(patient))
    if depth < MIN_STACK_LAYERS or not last:
        return
    root = 1 / math.sqrt(depth)
    if is_fresh(patient) and _is_loud(patient, last, depth):
        yield _folded(last, depth, root)
    fixed = root if family(patient) == "sgd" else 1 / depth
    hooked = _hooked(patient, last, fixed, 0)
    law = "1/sqrt(N)" if family(patient) == "sgd" else "1/N"
    if hooked:
        title = f"{len(hooked)} branches multiplied by {law} = {fixed:.3g}"
        yield Plan(title=title, edits=hooked, promise=0.7)
        yield Plan(
            title=f"{len(hooked)} branches multiplied by a learned number that starts at 0",
            edits=_hooked(patient, last, 0.0, 1),
            promise=0.6,
        )
        if is_fresh(patient):
            fresh = fresh_edits(patient)
            yield Plan(title=f"{title}, weights drawn anew", edits=(*fresh, *hooked), promise=0.5)


def _last_weights(patient: Patient) -> list[Weight]:
    """The last weights of branches that nobody scaled down and no norm behind the branch rescales."""
    blocks = patient.profile.blocks
    found = [
        each for each in weights(patient) if each.last and each.residual and 0 <= each.block < len(blocks)
    ]
    return [each for each in found if _is_bare(patient, each.block) and not each.norm]


def _is_bare(patient: Patient, block: int) -> bool:
    residual = patient.profile.blocks[block].residual
    return (
        residual is not None
        and residual.placement in ("none", "pre")
        and (residual.branch_scale or 0.0) > FULL
    )


def _is_loud(patient: Patient, last: list[Weight], depth: int) -> bool:
    """Branches are larger than their share of the stream: somebody who scaled them has done so in the weights."""
    residuals = [patient.profile.blocks[each.block].residual for each in last]
    shares = [r.branch_ms / r.skip_ms for r in residuals if r is not None and r.branch_ms and r.skip_ms]
    return not shares or not median(shares) < QUIET / depth


def _folded(last: list[Weight], depth: int, factor: float) -> Plan:
    factor = float(f"{factor:.4g}")
    names = [name for each in last if each.trainable for name in (each.name, each.bias) if name]
    return Plan(
        title=f"last weights of {len(last)} branches multiplied by 1/sqrt({depth}) = {factor:.3g}",
        edits=tuple(Edit(action="scale", where=name, options={"factor": factor}) for name in names),
        promise=0.6,
        reach="init",
    )


def _hooked(patient: Patient, last: list[Weight], factor: float, learned: int) -> tuple[Edit, ...]:
    """A hook for every branch; none at all where one of the branches ends in no module that can be hooked."""
    paths = [branch_end(patient, each) for each in last]
    if None in paths:
        return ()
    options = {"factor": float(f"{factor:.4g}"), "learned": learned}
    return tuple(Edit(action="scale-output", where=path, options=dict(options)) for path in paths if path)
