"""The fix warm-up: small first steps, the full learning rate later."""

from __future__ import annotations

from collections.abc import Iterator

from leadline.fixes._engine.fix import FixContext, Plan, fix
from leadline.fixes._engine.lookup import has_step_hook, is_fresh
from leadline.records import Edit

# Heuristic: a shorter warm-up ends before the moments of Adam have settled.
MIN_STEPS = 10

# Heuristic: a longer warm-up amounts to a smaller learning rate.
MAX_STEPS = 2000


@fix(
    name="warm-up",
    answers=("U501", "U502", "U503", "U504", "U509", "U523", "R402", "R411"),
    reach="recipe",
    since="0.1.0",
)
def warm_up(context: FixContext) -> Iterator[Plan]:
    r"""Lets the first steps grow linearly to the full learning rate.

    ## What it does
    Two hooks on the optimizer's step: before it, the rate of each group is multiplied by $(t+1)/w$ while $t < w$; after
    it, the group gets its own rate back, so that any scheduler is undisturbed. The length $w$ keeps the first steps
    below `Update.safe_lr`.

    ## Why it works
    At the start the function changes fastest, and an adaptive optimizer has seen too few gradients to know their size.
    Small first steps move the model to where the full rate is safe.

    ## What it costs
    About $w/2$ steps. The count is stored in the groups of the optimizer and saved with its state.

    ## When it does not help
    If the rate is too large for the whole training, warm-up only delays the trouble. If the steps of a residual scheme
    grow with depth, warm-up hides that and does not remove the cause.

    ## References
    Xiong et al., arXiv 2002.04745, section 3 (why post-norm needs it); Goyal et al., arXiv 1706.02677, section 2.2.
    """
    from leadline.nn.schedules import SlowStart  # torch-free start

    update = context.profile.update
    if update is None or not update.warmup_steps or not is_fresh(context):
        return
    if has_step_hook(context, SlowStart):
        return
    steps = min(max(update.warmup_steps, MIN_STEPS), MAX_STEPS)
    yield Plan(
        title=f"linear warm-up over {steps} steps",
        edits=(Edit(action="warm-up", options={"steps": steps}),),
        promise=0.4 if update.warmup_steps <= MAX_STEPS else 0.1,
    )
