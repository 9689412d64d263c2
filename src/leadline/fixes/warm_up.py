"""warm-up: small first steps, the full rate later."""

from __future__ import annotations

from collections.abc import Iterator

from leadline.fixes._engine.fix import Patient, Plan, fix
from leadline.fixes._engine.lookup import has_step_hook, is_fresh
from leadline.nn.schedules import SlowStart
from leadline.records import Edit

LEAST, MOST = 10, 2000  # steps: fewer are no warm-up, more are another rate (ours)


@fix(
    name="warm-up",
    answers=("U501", "U502", "U503", "U504", "U509", "U523", "R402", "R411"),
    reach="recipe",
    since="0.2",
)
def warm_up(patient: Patient) -> Iterator[Plan]:
    r"""Lets the first steps grow linearly to the full learning rate.

    ## What it does
    Two hooks on the optimiser's step: before it, the rate of each group is multiplied by $(t+1)/w$ while $t < w$;
    after it, the group's own rate is back, so that any scheduler goes on undisturbed. The length $w$ keeps the first
    steps below `Update.safe_lr`.

    ## Why it works
    At the start the function changes fastest and an adaptive optimiser knows its gradients' size least. Small first
    steps move the model to where the full rate is safe.

    ## What it costs
    About $w/2$ steps. The count is kept in the optimiser's groups and saved with its state.

    ## When it does not help
    If the rate is too large for the whole of training, warm-up only delays the trouble. It hides a residual scheme
    whose steps grow with depth; it does not cure it.

    ## References
    Xiong et al., arXiv 2002.04745, section 3 (why post-norm needs it); Goyal et al., arXiv 1706.02677, section 2.2.
    """
    update = patient.profile.update
    if (
        update is None
        or not update.warmup_steps
        or not is_fresh(patient)
        or has_step_hook(patient, SlowStart)
    ):
        return
    steps = min(max(update.warmup_steps, LEAST), MOST)
    yield Plan(
        title=f"linear warm-up over {steps} steps",
        edits=(Edit(action="warm-up", options={"steps": steps}),),
        promise=0.4 if update.warmup_steps <= MOST else 0.1,
    )
