"""T825: what each step did is undone before the next one."""

from __future__ import annotations

from collections.abc import Iterator

from leadline.checks._check import Symptom, check
from leadline.checks._examples import constant, scalar_history
from leadline.checks._history import History
from leadline.checks._loop import STEP_WINDOW, since, value

# Heuristic: undone steps among the last STEP_WINDOW; a line search undoes some.
MIN_RESTORED_STEPS = 8


@check(
    code="T825",
    name="restored-weights",
    since="0.1.0",
    needs=("restored_weights",),
    sick=scalar_history(40, restored_weights=lambda step: min(step, STEP_WINDOW)),
    healthy=scalar_history(40, restored_weights=constant(0.0)),
    explains=("T802", "T810", "T811"),
)
def restored_weights(history: History) -> Iterator[Symptom]:
    r"""The weights return to their old values after each step: something restores them.

    ## What it measures
    In how many of the last `STEP_WINDOW` = 32 steps the first elements of a parameter had, bit for bit, the values from
    before the previous step, which had changed them. Compared by value in the first steps, and later after something
    outside of the optimizer wrote to the parameter. Fires at `MIN_RESTORED_STEPS` = 8.

    ## Why it hurts
    Nothing that is learned stays: every step starts from the same weights.

    ## When it is wrong
    Restoring the best weights at the end, averaged weights that are swapped in for an evaluation, a perturbation that
    is taken back before the step (SAM) and inner loops of several steps are silent. A line search that rejects most of
    its steps is reported.

    ## References
    Derived.
    """
    steps = value(history, "restored_weights")
    if steps < MIN_RESTORED_STEPS:
        return
    yield Symptom(
        severity="error",
        where="the weights",
        since=since(history, "restored_weights"),
        message=f"{steps:.0f} of the last {STEP_WINDOW} steps were undone before the next step began",
        action="Look for a `load_state_dict` or a copy of old weights in the loop.",
        forecast="nothing that is learned stays",
        evidence={"steps": steps},
    )
