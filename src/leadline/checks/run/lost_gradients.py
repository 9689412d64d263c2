"""T817: gradients are gone when the optimizer steps."""

from __future__ import annotations

from collections.abc import Iterator

from leadline.checks._check import Symptom, check
from leadline.checks._examples import constant, scalar_history
from leadline.checks._history import History
from leadline.checks._loop import MIN_WRONG_STEPS, STEP_WINDOW, since, value


@check(
    code="T817",
    name="lost-gradients",
    since="0.1.0",
    needs=("lost_gradients", "dropped_passes"),
    sick=scalar_history(40, lost_gradients=lambda step: min(step, STEP_WINDOW)),
    healthy=scalar_history(40, lost_gradients=constant(0.0)),
    explains=("T802", "T810", "T811", "T812"),
)
def lost_gradients(history: History) -> Iterator[Symptom]:
    r"""A backward pass computed gradients, but they are cleared before the optimizer steps.

    ## What it measures
    In how many of the last `STEP_WINDOW` = 32 steps every gradient of the optimizer was None or zero although a
    backward pass had reached its parameters since the step before. Fires at `MIN_WRONG_STEPS` = 4. If a forward pass
    came between clearing and stepping, the step comes before its backward pass. With a single optimizer it also fires
    if in as many steps the gradients of one backward pass were cleared, and the step used only those of a later pass.

    ## Why it hurts
    The step does nothing, or only weight decay and old momentum act. The loss stays where it is. If only some passes
    are lost, as with `zero_grad()` inside the loop over micro-batches, most of the batch is computed in vain.

    ## When it is wrong
    Steps with a closure are not judged before the closure has run. The other side of a game (the generator's
    gradients in a step of the critic) is judged by its own steps only. Gradients that moved the weights before they
    were cleared, as in sharpness-aware minimization, were used.

    ## References
    Derived. PyTorch documentation of `torch.optim.Optimizer.zero_grad`.
    """
    steps, dropped = value(history, "lost_gradients"), value(history, "dropped_passes")
    if steps < MIN_WRONG_STEPS <= dropped:
        yield Symptom(
            severity="warning",
            where="the gradients",
            since=since(history, "dropped_passes"),
            message=f"in {dropped:.0f} of the last {STEP_WINDOW} steps the gradients of a backward pass were cleared "
            "before a step had used them",
            action="Call `optimizer.zero_grad()` once per step, outside of the loop over micro-batches.",
            forecast="each step learns from the last part of its batch only",
            evidence={"steps": dropped},
        )
    if steps < MIN_WRONG_STEPS:
        return
    is_early = value(history, "unseen_forwards") >= steps / 2
    yield Symptom(
        severity="error",
        where="the gradients",
        since=since(history, "lost_gradients"),
        message=f"in {steps:.0f} of the last {STEP_WINDOW} steps all gradients were cleared between the backward pass "
        "and the step",
        action="Move `optimizer.step()` to directly after `loss.backward()`."
        if is_early
        else "Move `optimizer.zero_grad()` before `loss.backward()` or after `optimizer.step()`.",
        forecast="the steps do not learn",
        evidence={"steps": steps},
    )
