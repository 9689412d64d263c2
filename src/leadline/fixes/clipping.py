"""clipping: no single gradient may make an outsize step."""

from __future__ import annotations

import math
from collections.abc import Iterator

from leadline.fixes._engine.fix import Patient, Plan, fix
from leadline.fixes._engine.lookup import has_step_hook
from leadline.nn.clipping import AGC_CLIP
from leadline.nn.schedules import AdaptiveClip, Clip
from leadline.records import Edit

NORM = 1.0  # of the whole gradient: the limit in common use (Pascanu et al. 2013; GPT-3, arXiv 2005.14165, app. B)


@fix(
    name="clipping",
    answers=("B202", "B204", "B207", "U501", "U502", "U509", "U523", "U521"),
    reach="recipe",
    since="0.2",
)
def clipping(patient: Patient) -> Iterator[Plan]:
    r"""Holds the gradient below a limit before each step: as a whole, or unit by unit.

    ## What it does
    A hook on the optimiser's step multiplies all gradients by $\min(1, c / \lVert g \rVert)$ with $c = 1$: the
    direction stays. The second form (AGC) holds the gradient of each unit below 1 % of the norm of its weights. The
    title says what share of the first gradient would be removed.

    ## Why it works
    Where gradients explode, or now and then are huge, a step linear in the gradient throws the model away. Clipping
    bounds the step of SGD by $\eta c$.

    ## What it costs
    Steps in steep regions become shorter than asked for; the mean step is biased. Adam divides gradients by their own
    size: clipping changes its steps only through the history that it keeps.

    ## When it does not help
    With Adam and its kin at a rate that is too large. And where gradients explode with depth, early layers still drown
    late ones: clipping keeps their ratio.

    ## References
    Pascanu et al., arXiv 1211.5063, algorithm 1; Brock et al., arXiv 2102.06171, section 4.1 (AGC).
    """
    update = patient.profile.update
    if (
        update is None
        or not math.isfinite(update.grad_square)
        or has_step_hook(patient, (Clip, AdaptiveClip))
    ):
        return
    norm = math.sqrt(update.grad_square)
    removed = max(0.0, 1 - NORM / norm) if norm else 0.0
    if removed:
        edit = Edit(action="clip", options={"kind": "norm", "limit": NORM})
        yield Plan(
            title=f"gradients clipped at norm {NORM:g}: {removed:.0%} of the first one",
            edits=(edit,),
            promise=0.3,
        )
    edit = Edit(action="clip", options={"kind": "adaptive", "limit": AGC_CLIP})
    yield Plan(
        title=f"each unit's gradient clipped at {AGC_CLIP:.0%} of its weights", edits=(edit,), promise=0.2
    )
