"""T818: the optimizer steps without a new gradient."""

from __future__ import annotations

from collections.abc import Iterator

from leadline.checks._check import Symptom, check
from leadline.checks._examples import constant, scalar_history
from leadline.checks._history import History
from leadline.checks._loop import MIN_WRONG_STEPS, STEP_WINDOW, since, value


@check(
    code="T818",
    name="idle-steps",
    since="0.1.0",
    needs=("idle_steps",),
    sick=scalar_history(40, idle_steps=lambda step: min(step, STEP_WINDOW)),
    healthy=scalar_history(40, idle_steps=constant(0.0)),
    explains=("T810", "T815"),
)
def idle_steps(history: History) -> Iterator[Symptom]:
    r"""The optimizer steps again with the gradient of the step before: no backward pass came between.

    ## What it measures
    In how many of the last `STEP_WINDOW` = 32 steps no backward pass reached the optimizer's parameters since the step
    before, and its gradients were the same tensors with the same values. Fires at `MIN_WRONG_STEPS` = 4.

    ## Why it hurts
    One gradient is used several times: the learning rate is a multiple of the one that was set, and momentum builds up
    in one direction. If no backward pass comes at all, the weights run away along the last gradient.

    ## When it is wrong
    Gradients that are set by hand (evolution strategies, `torch.autograd.grad`) are new tensors or new values, and
    closures compute theirs inside the step: both are silent.

    ## References
    Derived.
    """
    steps = value(history, "idle_steps")
    if steps < MIN_WRONG_STEPS:
        return
    yield Symptom(
        severity="warning",
        where="the optimizer",
        since=since(history, "idle_steps"),
        message=f"{steps:.0f} of the last {STEP_WINDOW} steps used the gradient of the step before a second time",
        action="Call `optimizer.step()` once after each `loss.backward()`.",
        evidence={"steps": steps},
    )
