"""T816: gradients of earlier steps are never cleared."""

from __future__ import annotations

from collections.abc import Iterator

from leadline.checks._check import Symptom, check
from leadline.checks._examples import constant, scalar_history
from leadline.checks._history import History
from leadline.checks._loop import MIN_WRONG_STEPS, STEP_WINDOW, since, value


@check(
    code="T816",
    name="stale-gradients",
    since="0.1.0",
    needs=("stale_gradients",),
    sick=scalar_history(40, stale_gradients=lambda step: min(step, STEP_WINDOW)),
    healthy=scalar_history(40, stale_gradients=constant(0.0)),
    explains=("T801", "T802", "T803", "T814", "T815"),
)
def stale_gradients(history: History) -> Iterator[Symptom]:
    r"""Gradients of earlier steps are never cleared: `zero_grad` is missing.

    ## What it measures
    In how many of the last `STEP_WINDOW` = 32 steps the gradients that the previous step used were untouched when the
    first backward pass after it began, so that new gradients were added to them. Fires at `MIN_WRONG_STEPS` = 4. It
    looks at the gradients, not at the call: `zero_grad` of an optimizer or a module, `p.grad = None` and
    `p.grad.zero_()` all count.

    ## Why it hurts
    Each step uses the sum of all gradients since the beginning, as with a momentum of 1: old gradients that no longer
    fit outweigh the new one, and the loss swings or grows.

    ## When it is wrong
    Gradient accumulation is silent, because it clears gradients after each step and adds them up between steps. So is
    a loop that changes the old gradients itself, for instance multiplies them by a factor. A method that adds up all
    gradients on purpose (dual averaging) is reported.

    ## References
    Derived. PyTorch documentation of `torch.optim.Optimizer.zero_grad`.
    """
    steps = value(history, "stale_gradients")
    if steps < MIN_WRONG_STEPS:
        return
    yield Symptom(
        severity="error",
        where="the gradients",
        since=since(history, "stale_gradients"),
        message=f"{steps:.0f} of the last {STEP_WINDOW} steps added their gradient to that of the step before",
        action="Call `optimizer.zero_grad()` once per step, before `loss.backward()` or after `optimizer.step()`.",
        forecast="each step uses the sum of all earlier gradients",
        evidence={"steps": steps},
    )
