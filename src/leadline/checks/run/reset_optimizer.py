"""T826: the optimizer's state is lost in each step, or when a run is resumed."""

from __future__ import annotations

from collections.abc import Iterator

from leadline.checks._check import Symptom, check
from leadline.checks._examples import constant, scalar_history
from leadline.checks._history import History
from leadline.checks._loop import MIN_WRONG_STEPS, STEP_WINDOW, since, value
from leadline.records import Severity


@check(
    code="T826",
    name="reset-optimizer",
    since="0.1.0",
    needs=("fresh_states", "lost_state"),
    sick=scalar_history(40, fresh_states=lambda step: min(step, STEP_WINDOW), lost_state=constant(0.0)),
    healthy=scalar_history(40, fresh_states=constant(0.0), lost_state=constant(0.0)),
)
def reset_optimizer(history: History) -> Iterator[Symptom]:
    r"""The optimizer has forgotten its momentum: it is made anew in each step, or its state was not loaded.

    ## What it measures
    In how many of the last `STEP_WINDOW` = 32 steps the optimizer's state was empty before a step that filled it,
    although the same parameters had stepped before. Fires at `MIN_WRONG_STEPS` = 4. Also whether `torch.load` read a
    file with the state of an optimizer, weights were loaded, and the optimizer took its first step without its state: a
    warning if the state of a schedule was loaded, which says that a run is resumed, else a note.

    ## Why it hurts
    Without its state Adam takes steps of the size of the learning rate in every weight, and momentum never builds up.
    After a resume the loss jumps up until the state is built again.

    ## When it is wrong
    Fine-tuning begins with a fresh optimizer on purpose; from a file that also holds the old optimizer it gets the
    note. Optimizers without a state (plain SGD) are silent.

    ## References
    Kingma & Ba, "Adam", 2015, section 3 (the first steps and their bias correction).
    """
    steps, lost = value(history, "fresh_states"), value(history, "lost_state")
    if steps >= MIN_WRONG_STEPS:
        yield Symptom(
            severity="error",
            where="the optimizer",
            since=since(history, "fresh_states"),
            message=f"in {steps:.0f} of the last {STEP_WINDOW} steps the optimizer began with an empty state",
            action="Make the optimizer once, before the loop, and do not clear its state.",
            forecast="momentum and adaptive step sizes never build up",
            evidence={"steps": steps},
        )
    elif lost:
        severity: Severity = "warning" if lost > 1 else "info"
        yield Symptom(
            severity=severity,
            where="the optimizer",
            since=since(history, "lost_state"),
            message="a file with weights and an optimizer state was loaded, but the optimizer began at step 0 of its "
            "state",
            action="Call `optimizer.load_state_dict(...)` when the run is resumed.",
            forecast="the loss jumps up until the state is built again",
            evidence={"lost_state": lost},
        )
