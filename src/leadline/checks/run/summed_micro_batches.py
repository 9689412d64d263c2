"""T828: the gradients of several batches are added up without being averaged."""

from __future__ import annotations

from collections.abc import Iterator

from leadline.checks._check import Symptom, check
from leadline.checks._examples import constant, scalar_history
from leadline.checks._history import History
from leadline.checks._loop import since, value


@check(
    code="T828",
    name="summed-micro-batches",
    since="0.1.0",
    needs=("summed_passes",),
    sick=scalar_history(40, summed_passes=constant(4.0)),
    healthy=scalar_history(40, summed_passes=constant(0.0)),
)
def summed_micro_batches(history: History) -> Iterator[Symptom]:
    r"""Each step adds up the gradients of several batches, whose losses are means that were not divided.

    ## What it measures
    Backward passes per step, each after a forward pass of its own, of losses that end in a mean over their batch and
    not in a division or multiplication. Fires at 3 passes per step, as a note.

    ## Why it hurts
    The gradient is that of the whole batch times the number of parts. With SGD that multiplies the learning rate; with
    Adam it changes little except clipping, which then clips as many times more.

    ## When it is wrong
    Sums on purpose, with a learning rate that was chosen for them. Two passes per step are silent, because a critic
    sees real and made samples one after the other. A loss that was divided earlier than in its last op is not
    recognized.

    ## References
    Derived. PyTorch documentation, "Automatic mixed precision examples", gradient accumulation.
    """
    passes = value(history, "summed_passes")
    if not passes:
        return
    yield Symptom(
        severity="info",
        where="the gradients",
        since=since(history, "summed_passes"),
        message=f"each step adds up the gradients of {passes:.0f} batches whose mean losses were not divided",
        action="Divide each loss by the number of backward passes per step before `backward()`.",
        evidence={"passes": passes},
    )
