"""T821: a learning-rate schedule was made and is never stepped."""

from __future__ import annotations

from collections.abc import Iterator

from leadline.checks._check import Symptom, check
from leadline.checks._examples import constant, scalar_history
from leadline.checks._history import History
from leadline.checks._loop import since, value

# Heuristic: epochs; a schedule that is stepped once per epoch was stepped by then.
MIN_EPOCHS = 3


@check(
    code="T821",
    name="idle-scheduler",
    since="0.1.0",
    needs=("idle_scheduler_epochs",),
    sick=scalar_history(40, idle_scheduler_epochs=lambda step: step // 8),
    healthy=scalar_history(40, idle_scheduler_epochs=constant(0.0)),
)
def idle_scheduler(history: History) -> Iterator[Symptom]:
    r"""The optimizer has a learning-rate schedule, but nobody calls its `step`.

    ## What it measures
    Epochs, which are new iterations over a DataLoader, during which an optimizer with a schedule was trained and no
    schedule was stepped. Fires at `MIN_EPOCHS` = 3.

    ## Why it hurts
    The learning rate stays where the schedule starts: at its peak, or at the tiny first value of a warm-up.

    ## When it is wrong
    A schedule that is stepped by events that have not happened yet, such as every ten epochs. Loops without a
    DataLoader have no epochs that could be counted, so nothing is said.

    ## References
    PyTorch documentation, "How to adjust learning rate".
    """
    epochs = value(history, "idle_scheduler_epochs")
    if epochs < MIN_EPOCHS:
        return
    yield Symptom(
        severity="warning",
        where="the learning rate",
        since=since(history, "idle_scheduler_epochs"),
        message=f"the schedule of the optimizer was not stepped once in {epochs:.0f} epochs",
        action="Call `scheduler.step()` after each epoch, or after each step if its length counts steps.",
        evidence={"epochs": epochs},
    )
