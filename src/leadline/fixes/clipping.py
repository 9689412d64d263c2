"""The fix clipping: a limit on the gradient of each step."""

from __future__ import annotations

import math
from collections.abc import Iterator

from leadline.fixes._engine.fix import FixContext, Plan, fix
from leadline.fixes._engine.lookup import has_step_hook
from leadline.records import Edit

# Cited: the limit in common use for the norm of the whole gradient (GPT-3, arXiv 2005.14165, appendix B).
MAX_GRADIENT_NORM = 1.0


@fix(
    name="clipping",
    answers=("B202", "B204", "B207", "U501", "U502", "U509", "U523", "U521"),
    reach="recipe",
    since="0.1.0",
)
def clipping(context: FixContext) -> Iterator[Plan]:
    r"""Limits the gradient before each step, as a whole or per unit.

    ## What it does
    A hook on the optimizer's step multiplies all gradients by $\min(1, c / \lVert g \rVert)$ with $c = 1$, which keeps
    their direction. The second form (AGC) limits the gradient of each unit to 1 % of the norm of its weights. The
    title says what share of the first gradient would be removed.

    ## Why it works
    Where gradients explode, or are occasionally huge, one step that is linear in the gradient destroys the model.
    Clipping bounds the step of SGD by $\eta c$.

    ## What it costs
    Steps in steep regions become shorter than the learning rate says, and the mean step is biased. Adam divides
    gradients by their own size, so clipping changes its steps only through the moments it averages.

    ## When it does not help
    With Adam and similar optimizers at a learning rate that is too large. Where gradients explode with depth, early
    layers still dominate late ones, because clipping preserves their ratio.

    ## References
    Pascanu et al., arXiv 1211.5063, algorithm 1; Brock et al., arXiv 2102.06171, section 4.1 (AGC).
    """
    from leadline.nn.clipping import AGC_CLIP  # torch-free start
    from leadline.nn.schedules import AdaptiveClip, Clip

    update = context.profile.update
    if update is None or not math.isfinite(update.grad_square):
        return
    if has_step_hook(context, (Clip, AdaptiveClip)):
        return
    norm = math.sqrt(update.grad_square)
    removed = max(0.0, 1 - MAX_GRADIENT_NORM / norm) if norm else 0.0
    if removed:
        edit = Edit(action="clip", options={"kind": "norm", "limit": MAX_GRADIENT_NORM})
        yield Plan(
            title=f"gradients clipped at norm {MAX_GRADIENT_NORM:g}, which removes {removed:.0%} of the first one",
            edits=(edit,),
            promise=0.3,
        )
    edit = Edit(action="clip", options={"kind": "adaptive", "limit": AGC_CLIP})
    yield Plan(
        title=f"gradient of each unit clipped at {AGC_CLIP:.0%} of the norm of its weights",
        edits=(edit,),
        promise=0.2,
    )
